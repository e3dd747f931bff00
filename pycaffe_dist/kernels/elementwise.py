"""Array code run block by block on all threads, for functions too rare to be worth compiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.threads import parallel_for

# Three arrays and a temporary of this many doubles stay in a core's level-two cache.
BLOCK = 8192
# The fewest elements that one thread sets to 0.
CLEARED = 1 << 17


def _blocks(begin: int, end: int, size: int, function: Callable[..., Any], arrays: list) -> None:
    # No warning for infinite or undefined results: the loss shows them, as in Caffe.
    with np.errstate(all="ignore"):
        for start in range(begin * BLOCK, min(end * BLOCK, size), BLOCK):
            function(*[array[start : min(start + BLOCK, size)] for array in arrays])


@kernel
def blockwise(function: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Call ``function`` on corresponding blocks of the flattened arrays, each block once.

    The arrays have one size; NumPy's own loops release the interpreter lock, so blocks of
    different threads run at the same time.
    """
    size = arrays[0].size
    flat = [array.reshape(-1) for array in arrays]
    parallel_for(_blocks, -(-size // BLOCK), size, function, flat, grain=2)


def _clear(begin: int, end: int, flat: np.ndarray) -> None:
    flat[begin:end].fill(0)


@kernel
def clear(x: np.ndarray) -> None:
    """Set x to 0."""
    parallel_for(_clear, x.size, x.reshape(-1), grain=CLEARED)
