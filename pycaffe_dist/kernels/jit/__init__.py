"""Shape-specialised machine code: specifications become LLVM IR, objects, and addresses to call.

A specification (`RowKernel`, `OuterKernel`, `FlatKernel`, `TransposeKernel`) is a frozen dataclass
that says which loop nest it wants; `address_of` compiles it for the host's vector units, keeps the
object file in a per-user cache, and returns the address that Numba drivers call.
"""
