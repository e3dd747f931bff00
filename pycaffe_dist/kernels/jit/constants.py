"""Arrays of numbers that kernels read: the same numbers are the same array in every pass."""

from __future__ import annotations

import functools

import numpy as np


@functools.lru_cache(maxsize=1024)
def constants(*numbers: int) -> np.ndarray:
    """Return integers for a kernel, which takes an array in less time than a tuple."""
    return np.array(numbers, np.int64)


@functools.lru_cache(maxsize=1024)
def factors(*numbers: float) -> np.ndarray:
    """Return float32 numbers for a microkernel, which reads them from memory."""
    return np.array(numbers, np.float32)
