"""Scratch memory for the parts of a gradient that threads compute side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from pycaffe_dist.kernels.filling import add_sum, clear
from pycaffe_dist.kernels.jit import workspace


@contextmanager
def lend_parts(count: int, total: np.ndarray) -> Iterator[np.ndarray]:
    """Return a context with ``count`` rows of zeros, whose sum is added to ``total`` at its end.

    ``total`` is a C-contiguous float32 array; a row has as many elements.
    """
    with workspace.shared.lend(count * total.size) as memory:
        clear(memory)
        parts = memory.reshape(count, -1)
        yield parts
        add_sum(parts, total.reshape(-1))
