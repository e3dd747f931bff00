"""Rectified linear units on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels

_cu = kernels("activation")


def relu_forward(x: Any, y: Any, slope: float) -> None:
    """See `pycaffe_dist.kernels.activation.relu_forward`."""
    _cu.relu_forward(x.size, x, y, slope, x.size)


def relu_backward(sign: Any, dy: Any, dx: Any, slope: float) -> None:
    """See `pycaffe_dist.kernels.activation.relu_backward`."""
    _cu.relu_backward(dx.size, sign, dy, dx, slope, dx.size)


def clipped_relu_forward(x: Any, y: Any, slope: float, ceiling: float) -> None:
    """See `pycaffe_dist.kernels.activation.clipped_relu_forward`."""
    _cu.clipped_relu_forward(x.size, x, y, slope, ceiling, x.size)


def clipped_relu_backward(value: Any, dy: Any, dx: Any, slope: float, ceiling: float) -> None:
    """See `pycaffe_dist.kernels.activation.clipped_relu_backward`."""
    _cu.clipped_relu_backward(dx.size, value, dy, dx, slope, ceiling, dx.size)


def prelu_forward(sign: Any, x: Any, y: Any, slope: Any) -> None:
    """See `pycaffe_dist.kernels.activation.prelu_forward`."""
    _, channels, inner = sign.shape
    _cu.prelu_forward(x.size, sign, x, y, slope, channels, inner, x.size)


def prelu_slope_gradient(x: Any, dy: Any, dslope: Any) -> None:
    """See `pycaffe_dist.kernels.activation.prelu_slope_gradient`."""
    outer, channels, inner = x.shape
    _cu.prelu_slope_gradient.blocks(channels, x, dy, dslope, outer, channels, inner)
