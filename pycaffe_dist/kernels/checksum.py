"""A checksum of an array that changes with every single bit."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

_BLOCK = 1 << 16


@jit
def _checksum(begin, end, words, sums):
    for block in range(begin, end):
        part = words[block * _BLOCK : (block + 1) * _BLOCK]
        place = np.uint64(2 * block * _BLOCK + 1)
        total = np.uint64(0)
        for i in range(part.size):
            total += np.uint64(part[i]) * (place + np.uint64(2 * i))
        sums[block] = total


@kernel
def checksum(array: np.ndarray) -> int:
    """Return a 64-bit checksum of an array (C-contiguous, float32 or float64).

    It is the sum modulo 2^64 of the 32-bit words, each times an odd number that depends on its
    place.  Any change to one word changes it; changes to several hardly ever cancel out.
    """
    words = array.reshape(-1).view(np.uint32)
    sums = np.zeros(-(-words.size // _BLOCK), np.uint64)
    parallel_for(_checksum, sums.size, words, sums)
    return int(sums.sum(dtype=np.uint64))
