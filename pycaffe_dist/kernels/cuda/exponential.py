"""The exponential function and its kin on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels

_cu = kernels("exponential")


def sigmoid(x: Any, y: Any) -> None:
    """See `pycaffe_dist.kernels.exponential.sigmoid`."""
    _cu.sigmoid(x.size, x, y, x.size)


def tanh(x: Any, y: Any) -> None:
    """See `pycaffe_dist.kernels.exponential.tanh`."""
    _cu.hyperbolic_tangent(x.size, x, y, x.size)


def mish(x: Any, y: Any) -> None:
    """See `pycaffe_dist.kernels.exponential.mish`."""
    _cu.mish(x.size, x, y, x.size)


def mish_gradient(x: Any, dy: Any, dx: Any) -> None:
    """See `pycaffe_dist.kernels.exponential.mish_gradient`."""
    _cu.mish_gradient(x.size, x, dy, dx, x.size)
