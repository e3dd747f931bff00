"""The form in which numbers travel: as they are, or rounded to 16 bits."""

from __future__ import annotations

import functools

import numpy as np

from pycaffe_dist.config import Wire


class WireFormat:
    """Numbers that travel as they are; the array that is sent is the array itself.

    ``pack`` returns what to send, ``room`` where to receive it, ``unpack`` puts what was received
    into place, and ``settle`` is for a rank that sends a result and must keep what the others get.
    """

    def nbytes(self, count: float, itemsize: int) -> float:
        """Return how many bytes ``count`` numbers of ``itemsize`` bytes take on the wire."""
        return count * itemsize

    def pack(self, values: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
        """Return ``values`` (one axis) as they travel.

        What rounding loses goes to ``residual``, an array like ``values``, and is added to the
        values of the next call with it.
        """
        return values

    def words(self, values: np.ndarray) -> tuple[int, np.dtype]:
        """Return the size and dtype of the array in which ``values`` travel."""
        return values.size, values.dtype

    def room(self, values: np.ndarray) -> np.ndarray:
        """Return an array that can receive packed ``values``."""
        return values

    def unpack(self, packed: np.ndarray, out: np.ndarray) -> None:
        """Set ``out`` to what was received."""
        if packed is not out:
            out[...] = packed

    def settle(self, values: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
        """Return ``values`` as they travel, and set them to what arrives."""
        packed = self.pack(values, residual)
        self.unpack(packed, values)
        return packed


class Rounded(WireFormat):
    """float32 numbers that travel with 16 bits, as float16 or bfloat16."""

    def __init__(self, wire: Wire):
        from pycaffe_dist.kernels import half as kernels

        self._head = kernels.HEAD
        if wire is Wire.FLOAT16:
            self._encode, self._decode = kernels.encode_float16, kernels.decode_float16
        else:
            self._encode, self._decode = kernels.encode_bfloat16, kernels.decode_bfloat16
        # Kernels that are not compiled yet are so now, not in the thread that moves messages.
        number = np.zeros(1, np.float32)
        self.settle(number, number.copy())
        self.settle(number, None)

    def nbytes(self, count: float, itemsize: int) -> float:
        """Return the size of two bytes for each number."""
        return 2 * count

    def pack(self, values: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
        """Return ``values`` rounded; nothing travels for no values."""
        packed = self.room(values)
        if values.size:
            self._encode(values, residual, packed)
        return packed

    def words(self, values: np.ndarray) -> tuple[int, np.dtype]:
        """Return the size and dtype of the 16-bit words, a head included."""
        return values.size + self._head if values.size else 0, np.dtype(np.uint16)

    def room(self, values: np.ndarray) -> np.ndarray:
        """Return an array of 16-bit words."""
        return np.empty(*self.words(values))

    def unpack(self, packed: np.ndarray, out: np.ndarray) -> None:
        """Set ``out`` to the numbers that were received."""
        if out.size:
            self._decode(packed, out)


AS_IT_IS = WireFormat()


@functools.cache
def wire_format(wire: Wire, dtype: np.dtype) -> WireFormat:
    """Return the form in which numbers of ``dtype`` travel: only float32 is ever rounded."""
    if wire is Wire.FLOAT32 or dtype != np.float32:
        return AS_IT_IS
    return Rounded(wire)
