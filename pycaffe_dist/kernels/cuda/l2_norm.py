"""Division by the L2 norm over channels at each position on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.division import division
from pycaffe_dist.kernels.cuda.rows import block_size

_cu = kernels("l2_norm")


def _layout(x: Any, norms: Any) -> tuple[int, ...]:
    _, channels, positions = x.shape
    return channels, positions, *division(max(1, positions)), norms.size


def divide_by_norms(x: Any, scale: Any, eps: float, norms: Any, y: Any) -> None:
    """See `pycaffe_dist.kernels.l2_norm.divide_by_norms`."""
    _cu.divide_by_norms(norms.size, x, scale, eps, norms, y, *_layout(x, norms))


def norms_gradient(x: Any, dy: Any, scale: Any, norms: Any, dx: Any) -> None:
    """See `pycaffe_dist.kernels.l2_norm.norms_gradient`."""
    _cu.norms_gradient(norms.size, x, dy, scale, norms, dx, *_layout(x, norms))


def scale_gradient(x: Any, dy: Any, norms: Any, total: Any) -> None:
    """See `pycaffe_dist.kernels.l2_norm.scale_gradient`."""
    args = x, dy, norms, total, *_layout(x, norms)
    _cu.scale_gradient.blocks(x.shape[1], *args, threads=block_size(norms.size))
