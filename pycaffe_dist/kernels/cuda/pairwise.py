"""Distances of each row of a matrix to each row of another on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.division import division

_cu = kernels("pairwise")


def distances(x: Any, w: Any, magnitudes: bool, y: Any) -> None:
    """See `pycaffe_dist.kernels.pairwise.distances`."""
    others, depth = w.shape
    layout = others, depth, *division(max(1, others)), y.size
    _cu.distances(y.size, x, w, int(magnitudes), y, *layout)


def magnitudes_gradient(x: Any, w: Any, dy: Any, turned: bool, dx: Any) -> None:
    """See `pycaffe_dist.kernels.pairwise.magnitudes_gradient`."""
    rows, depth = x.shape
    layout = rows, len(w), depth, *division(max(1, depth)), x.size
    _cu.magnitudes_gradient(x.size, x, w, dy, int(turned), dx, *layout)
