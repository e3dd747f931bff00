"""Lets Numba functions call a microkernel by its address."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def call(typing_context, address, *arguments):  # noqa: ANN201 (Numba gives it its type)
    """Call the function at ``address`` with integer ``arguments``, widened to 64 bits."""

    def generate(context, builder, signature, values):
        pointer, packed = values
        given = cgutils.unpack_tuple(builder, packed)
        wide = [
            context.cast(builder, value, kind, types.int64)
            for value, kind in zip(given, signature.args[1].types)
        ]
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * len(wide))
        function = builder.inttoptr(pointer, kind.as_pointer())
        builder.call(function, wide)
        return context.get_dummy_value()

    (packed,) = arguments if len(arguments) == 1 else (types.Tuple(arguments),)
    return types.void(types.int64, packed), generate
