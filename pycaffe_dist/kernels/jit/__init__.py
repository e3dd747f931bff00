"""Shape-specialised machine code: specifications become LLVM IR, object files and addresses.

A specification, such as `RowKernel` or `FlatKernel`, is a frozen dataclass that describes a loop
nest.  `address_of` compiles it for the host's vector units, keeps the object file in a per-user
cache, and returns the address for Numba functions to call.
"""
