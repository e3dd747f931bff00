"""Dropout without a stored mask: the mask is a function of a key and the element's index."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

ELEMENTS_PER_CHUNK = 1 << 14
BLOCK = 1024


@jit
def _hash(value, key):
    # Two rounds of multiply and xor-shift, as in murmur3's finaliser, with the key between them.
    value = np.uint32(value ^ key)
    value = np.uint32((value ^ (value >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    value = np.uint32((value ^ (value >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(value ^ (value >> np.uint32(16)))


@jit
def _dropout(begin, end, x, y, key, threshold, scale, zero):
    low, high = np.uint32(key), np.uint32(key >> np.uint64(32))
    factors = np.empty(BLOCK, x.dtype)
    for start in range(begin, end, BLOCK):
        stop = min(start + BLOCK, end)
        # The upper 32 bits of an element's number change the key.
        block_key = np.uint32(high + np.uint32(start >> 32))
        for i in range(stop - start):
            number = np.uint32(np.uint32(start) + np.uint32(i))
            kept = _hash(_hash(number, low), block_key) >= threshold
            factors[i] = scale if kept else zero
        source, target = x[start:stop], y[start:stop]
        for i in range(stop - start):
            target[i] = source[i] * factors[i]


@kernel
def dropout(x: np.ndarray, y: np.ndarray, key: np.ndarray, ratio: float, scale: float) -> None:
    """Set y to x·scale, or to 0 with probability ``ratio``; y may be x.

    The same key, (1,) of uint64, drops the same elements: backward calls this with dy and dx.
    """
    threshold = np.uint32(min(ratio * 2.0**32, 2.0**32 - 1))
    scalars = key[0], threshold, x.dtype.type(scale), x.dtype.type(0)
    flat = x.reshape(-1), y.reshape(-1)
    parallel_for(_dropout, x.size, *flat, *scalars, grain=ELEMENTS_PER_CHUNK)
