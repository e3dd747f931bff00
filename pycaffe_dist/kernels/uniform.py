"""Uniform random numbers, each a function of a key and its index."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import indices, jit
from pycaffe_dist.threads import parallel_for

ELEMENTS_PER_CHUNK = 1 << 14


@jit
def _mix(value):
    # The finaliser of splitmix64 (Steele, Lea and Flood, 2014).
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@jit
def _uniform(begin, end, out, key, step):
    for i in indices(begin, end):
        bits = _mix(key + (i + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
        out[i] = out.dtype.type(bits) * step


@kernel
def uniform(out: np.ndarray, key: np.ndarray) -> None:
    """Set out (float32 or float64) to numbers in [0, 1), multiples of 2^-24.

    The same key, (1,) of uint64, gives the same numbers, on every device.
    """
    flat, step = out.reshape(-1), out.dtype.type(2.0**-24)
    parallel_for(_uniform, out.size, flat, key[0], step, grain=ELEMENTS_PER_CHUNK)
