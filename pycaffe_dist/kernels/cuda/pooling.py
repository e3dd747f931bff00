"""Pooling of the two last axes on a GPU: maximum, average and stochastic."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.rows import row_shift
from pycaffe_dist.kernels.cuda.source import Kernel
from pycaffe_dist.kernels.pooling import PoolingGeometry

_cu = kernels("pooling")


def max_pool_forward(x: Any, y: Any, mask: Any, geometry: PoolingGeometry) -> None:
    """See `pycaffe_dist.kernels.pooling.max_pool_forward`."""
    _launch(_cu.max_pool_forward, (x, y, mask), x, y, geometry, y)


def max_pool_backward(dy: Any, mask: Any, dx: Any, geometry: PoolingGeometry) -> None:
    """See `pycaffe_dist.kernels.pooling.max_pool_backward`."""
    _launch(_cu.max_pool_backward, (dy, mask, dx), dx, dy, geometry, dx)


def average_pool_forward(x: Any, y: Any, geometry: PoolingGeometry) -> None:
    """See `pycaffe_dist.kernels.pooling.average_pool_forward`."""
    _launch(_cu.average_pool_forward, (x, y), x, y, geometry, y)


def average_pool_backward(dy: Any, dx: Any, geometry: PoolingGeometry) -> None:
    """See `pycaffe_dist.kernels.pooling.average_pool_backward`."""
    _launch(_cu.average_pool_backward, (dy, dx), dx, dy, geometry, dx)


def stochastic_pool_forward(
    x: Any, random: Any, y: Any, mask: Any, geometry: PoolingGeometry
) -> None:
    """See `pycaffe_dist.kernels.pooling.stochastic_pool_forward`."""
    _launch(_cu.stochastic_pool_forward, (x, random, y, mask), x, y, geometry, y)


def stochastic_pool_mean(x: Any, y: Any, geometry: PoolingGeometry) -> None:
    """See `pycaffe_dist.kernels.pooling.stochastic_pool_mean`."""
    _launch(_cu.stochastic_pool_mean, (x, y), x, y, geometry, y)


def _launch(
    kernel: Kernel, arrays: tuple, x: Any, y: Any, geometry: PoolingGeometry, result: Any
) -> None:
    """Launch a kernel over the rows of ``result``, which is x or y or an array of such a shape."""
    columns = result.shape[-1]
    lines, shift = result.size // max(1, columns), row_shift(columns)
    sizes = *x.shape[-2:], *y.shape[-2:], *geometry.kernel, *geometry.stride, *geometry.pad
    kernel(lines << shift, *arrays, *sizes, lines, shift)
