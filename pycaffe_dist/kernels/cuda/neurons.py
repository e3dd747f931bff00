"""Functions of one element, and their gradients, on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels

_cu = kernels("neurons")


def sigmoid_gradient(y: Any, dy: Any, dx: Any) -> None:
    """See `pycaffe_dist.kernels.neurons.sigmoid_gradient`."""
    _cu.sigmoid_gradient(dx.size, y, dy, dx, dx.size)


def hard_sigmoid_forward(x: Any, y: Any) -> None:
    """See `pycaffe_dist.kernels.neurons.hard_sigmoid_forward`."""
    _cu.hard_sigmoid_forward(y.size, x, y, y.size)


def hard_sigmoid_gradient(y: Any, dy: Any, dx: Any) -> None:
    """See `pycaffe_dist.kernels.neurons.hard_sigmoid_gradient`."""
    _cu.hard_sigmoid_gradient(dx.size, y, dy, dx, dx.size)


def tanh_gradient(y: Any, dy: Any, dx: Any) -> None:
    """See `pycaffe_dist.kernels.neurons.tanh_gradient`."""
    _cu.tanh_gradient(dx.size, y, dy, dx, dx.size)


def power_forward(x: Any, y: Any, power: float, scale: float, shift: float) -> None:
    """See `pycaffe_dist.kernels.neurons.power_forward`."""
    _cu.power_forward(y.size, x, y, power, scale, shift, y.size)


def power_gradient(x: Any, dy: Any, dx: Any, power: float, scale: float, shift: float) -> None:
    """See `pycaffe_dist.kernels.neurons.power_gradient`."""
    _cu.power_gradient(dx.size, x, dy, dx, power, scale, shift, dx.size)


def absolute_gradient(x: Any, dy: Any, dx: Any) -> None:
    """See `pycaffe_dist.kernels.neurons.absolute_gradient`."""
    _cu.absolute_gradient(dx.size, x, dy, dx, dx.size)


def bnll_forward(x: Any, y: Any) -> None:
    """See `pycaffe_dist.kernels.neurons.bnll_forward`."""
    _cu.bnll_forward(y.size, x, y, y.size)


def bnll_gradient(x: Any, dy: Any, dx: Any) -> None:
    """See `pycaffe_dist.kernels.neurons.bnll_gradient`."""
    _cu.bnll_gradient(dx.size, x, dy, dx, dx.size)


def clip_gradient(x: Any, dy: Any, dx: Any, lowest: float, highest: float) -> None:
    """See `pycaffe_dist.kernels.neurons.clip_gradient`."""
    _cu.clip_gradient(dx.size, x, dy, dx, lowest, highest, dx.size)


def elu_forward(x: Any, y: Any, alpha: float) -> None:
    """See `pycaffe_dist.kernels.neurons.elu_forward`."""
    _cu.elu_forward(y.size, x, y, alpha, y.size)


def elu_gradient(x: Any, dy: Any, dx: Any, alpha: float) -> None:
    """See `pycaffe_dist.kernels.neurons.elu_gradient`."""
    _cu.elu_gradient(dx.size, x, dy, dx, alpha, dx.size)


def exp_forward(x: Any, y: Any, scale: float, shift: float) -> None:
    """See `pycaffe_dist.kernels.neurons.exp_forward`."""
    _cu.exp_forward(y.size, x, y, scale, shift, y.size)


def exp_gradient(y: Any, dy: Any, dx: Any, scale: float) -> None:
    """See `pycaffe_dist.kernels.neurons.exp_gradient`."""
    _cu.exp_gradient(dx.size, y, dy, dx, scale, dx.size)


def log_forward(x: Any, y: Any, factor: float, scale: float, shift: float) -> None:
    """See `pycaffe_dist.kernels.neurons.log_forward`."""
    _cu.log_forward(y.size, x, y, factor, scale, shift, y.size)


def log_gradient(x: Any, dy: Any, dx: Any, factor: float, scale: float, shift: float) -> None:
    """See `pycaffe_dist.kernels.neurons.log_gradient`."""
    _cu.log_gradient(dx.size, x, dy, dx, factor, scale, shift, dx.size)


def swish_forward(x: Any, y: Any, beta: float) -> None:
    """See `pycaffe_dist.kernels.neurons.swish_forward`."""
    _cu.swish_forward(y.size, x, y, beta, y.size)


def swish_gradient(x: Any, dy: Any, dx: Any, beta: float) -> None:
    """See `pycaffe_dist.kernels.neurons.swish_gradient`."""
    _cu.swish_gradient(dx.size, x, dy, dx, beta, dx.size)
