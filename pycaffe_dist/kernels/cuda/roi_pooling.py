"""Pooling of boxes on a GPU: maxima, averages by position, and bilinear samples."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels

_cu = kernels("roi_pooling")


def roi_max_forward(x: Any, image: Any, begin: Any, end: Any, y: Any, mask: Any) -> None:
    """See `pycaffe_dist.kernels.roi_pooling.roi_max_forward`."""
    arrays = x, image, begin, end, y, mask
    _cu.roi_max_forward(y.size, *arrays, *x.shape[1:], *y.shape[2:], begin.shape[2], y.size)


def roi_max_backward(dy: Any, mask: Any, image: Any, begin: Any, end: Any, dx: Any) -> None:
    """See `pycaffe_dist.kernels.roi_pooling.roi_max_backward`."""
    arrays = dy, mask, image, begin, end, dx
    sizes = dy.shape[0], *dx.shape[1:], *dy.shape[2:], begin.shape[2]
    _cu.roi_max_backward(dx.size, *arrays, *sizes, dx.size)


def roi_average_forward(x: Any, image: Any, begin: Any, end: Any, y: Any) -> None:
    """See `pycaffe_dist.kernels.roi_pooling.roi_average_forward`."""
    arrays = x, image, begin, end, y
    _cu.roi_average_forward(y.size, *arrays, *x.shape[1:], y.shape[2], y.size)


def roi_average_backward(dy: Any, image: Any, begin: Any, end: Any, dx: Any) -> None:
    """See `pycaffe_dist.kernels.roi_pooling.roi_average_backward`."""
    arrays = dy, image, begin, end, dx
    _cu.roi_average_backward(*(dx.size, *arrays, dy.shape[0], *dx.shape[1:], dy.shape[2], dx.size))


def roi_sample_forward(x: Any, image: Any, low: Any, part: Any, y: Any) -> None:
    """See `pycaffe_dist.kernels.roi_pooling.roi_sample_forward`."""
    arrays = x, image, low, part, y
    _cu.roi_sample_forward(y.size, *arrays, *x.shape[1:], *y.shape[2:], low.shape[2], y.size)


def roi_sample_backward(dy: Any, image: Any, low: Any, near: Any, far: Any, dx: Any) -> None:
    """See `pycaffe_dist.kernels.roi_pooling.roi_sample_backward`."""
    arrays = dy, image, low, near, far, dx
    sizes = dy.shape[0], *dx.shape[1:], *dy.shape[2:], low.shape[2]
    _cu.roi_sample_backward(dx.size, *arrays, *sizes, dx.size)


def roi_sample_slopes(
    x: Any, image: Any, low: Any, part: Any, share: Any, dy: Any, slopes: Any
) -> None:
    """See `pycaffe_dist.kernels.roi_pooling.roi_sample_slopes`."""
    count = slopes.shape[0] * slopes.shape[1]
    arrays = x, image, low, part, share, dy, slopes
    _cu.roi_sample_slopes(count, *arrays, *x.shape[1:], *dy.shape[2:], low.shape[2], count)
