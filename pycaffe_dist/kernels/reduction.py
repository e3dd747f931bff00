"""Sums along the rows of a matrix: of its elements, their magnitudes, or their squares."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel

# The function of each element that is summed.
PLAIN, MAGNITUDE, SQUARE = range(3)


@kernel
def reduce_rows(x: np.ndarray, what: int, coefficient: float, y: np.ndarray) -> None:
    """Set y (n,) to coefficient times the sums of the rows of x (n, d)."""
    if what == SQUARE:
        np.einsum("nd,nd->n", x, x, out=y)
    else:
        np.sum(np.absolute(x) if what == MAGNITUDE else x, axis=1, out=y)
    y *= coefficient
