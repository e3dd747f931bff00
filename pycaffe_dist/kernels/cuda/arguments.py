"""A kernel's arguments in memory, as CUDA's driver reads them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

# Codes of the module struct, by NumPy's names of types.
_CODES = {
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "int8": "b",
    "uint8": "B",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "bool": "?",
}
POINTER = "pointer"
_CODES[POINTER] = "P"


class Arguments:
    """Memory for a kernel's arguments; at ``address`` are the pointers to them.

    ``types`` are NumPy's names of the parameters' types, POINTER for arrays.  One thread may use
    it at a time.
    """

    def __init__(self, types: Sequence[str]):
        codes = [_CODES[name] for name in types]
        layout = struct.Struct("@" + "".join(codes))
        self._values = (ctypes.c_uint64 * (layout.size // 8 + 1))()
        begin = ctypes.addressof(self._values)
        ends = [struct.calcsize("@" + text) for text in accumulate(codes)]
        self._pointers = (ctypes.c_void_p * len(codes))(
            *[begin + end - struct.calcsize(code) for code, end in zip(codes, ends)]
        )
        self.address = ctypes.addressof(self._pointers)
        self._layout = layout

    def put(self, values: Sequence[Any]) -> None:
        """Store new values, addresses for arrays; raises struct.error for wrong types."""
        self._layout.pack_into(self._values, 0, *values)
