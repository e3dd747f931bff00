"""The memory of blobs on the host: aligned buffers that grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.device import Device

# Vector kernels may read up to this many bytes past an array's end; the storage covers them.
SLACK_BYTES = 64
ALIGNMENT = 64


class Storage:
    """A growable, aligned, zero-initialised buffer that several blobs may share.

    Its arrays are valid while ``generation`` does not change.
    """

    __slots__ = ("_buffer", "dtype", "generation")

    def __init__(self, dtype: np.dtype):
        self.dtype = dtype
        self._buffer: np.ndarray | None = None
        self.generation: float = 0

    @property
    def device(self) -> Device:
        """The GPU that the memory is mirrored on, or the host."""
        return device.HOST

    def stage(self) -> None:
        """Begin to copy the values to the host."""

    def is_staged(self) -> bool:
        """Tell whether the values can be read on the host without waiting."""
        return True

    def flat(self, count: int) -> np.ndarray:
        """Return the first ``count`` elements, growing the buffer when it is too small."""
        if self._buffer is None or self._buffer.size < count:
            # As in Caffe, a buffer loses its values when it grows.
            self._buffer = aligned_zeros(count, self.dtype)
            self.generation += 1
        return self._buffer[:count]

    def array(self, shape: tuple[int, ...], count: int, write: bool = True) -> Any:
        """Return the first ``count`` elements as an array on the current device."""
        return self.flat(count).reshape(shape)

    def release(self) -> None:
        """Wait until nobody reads the memory that was adopted, or that renewed the values."""

    def renew(self, count: int, write: Callable[[Any], None]) -> None:
        """Take ``count`` new values, which ``write`` puts into a flat array of the device."""
        write(self.flat(count))

    def adopt(self, buffer: np.ndarray) -> None:
        """Replace the own buffer by flat ``buffer`` with its values."""
        self._buffer = buffer
        self.generation += 1


def aligned_zeros(count: int, dtype: np.dtype) -> np.ndarray:
    """Return ``count`` zeros, flat, in memory like a blob's: aligned, with slack at the end."""
    nbytes = count * dtype.itemsize
    raw = np.zeros(nbytes + ALIGNMENT + SLACK_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].view(dtype)
