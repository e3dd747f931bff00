"""Functions of one element, and their gradients, in array code on the CPU.

All arrays are of one size; y may be x, and dx may be dy.
"""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.exponential import sigmoid


@kernel
def sigmoid_gradient(y: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """Set dx for y = sigmoid(x)."""
    factor = y - y * y
    np.multiply(dy, factor, out=dx)


@kernel
def hard_sigmoid_forward(x: np.ndarray, y: np.ndarray) -> None:
    """Set y to 0.2·x + 0.5, kept between 0 and 1."""
    np.multiply(x, 0.2, out=y)
    y += 0.5
    np.clip(y, 0, 1, out=y)


@kernel
def hard_sigmoid_gradient(y: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """Set dx for `hard_sigmoid_forward`."""
    inside = (y > 0) & (y < 1)
    np.multiply(dy, inside, out=dx)
    dx *= 0.2


@kernel
def tanh_gradient(y: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """Set dx for y = tanh x."""
    factor = y * y
    np.subtract(1, factor, out=factor)
    np.multiply(dy, factor, out=dx)


@kernel
def power_forward(x: np.ndarray, y: np.ndarray, power: float, scale: float, shift: float) -> None:
    """Set y to (shift + scale·x)^power."""
    np.multiply(x, scale, out=y)
    y += shift
    if power != 1:
        np.power(y, power, out=y)


@kernel
def power_gradient(
    x: np.ndarray, dy: np.ndarray, dx: np.ndarray, power: float, scale: float, shift: float
) -> None:
    """Set dx for y = (shift + scale·x)^power."""
    slope = x * scale
    slope += shift
    if power != 2:
        np.power(slope, power - 1, out=slope)
    slope *= power * scale
    np.multiply(dy, slope, out=dx)


@kernel
def absolute_gradient(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """Set dx for y = |x|."""
    np.multiply(dy, np.sign(x), out=dx)


@kernel
def bnll_forward(x: np.ndarray, y: np.ndarray) -> None:
    """Set y to log(1 + e^x)."""
    np.logaddexp(x, 0, out=y)


@kernel
def bnll_gradient(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """Set dx for y = log(1 + e^x)."""
    factor = np.empty_like(x)
    sigmoid(x, factor)
    np.multiply(dy, factor, out=dx)


@kernel
def clip_gradient(
    x: np.ndarray, dy: np.ndarray, dx: np.ndarray, lowest: float, highest: float
) -> None:
    """Set dx to dy where x lies between the limits, else to 0."""
    inside = (x >= lowest) & (x <= highest)
    np.multiply(dy, inside, out=dx)


@kernel
def elu_forward(x: np.ndarray, y: np.ndarray, alpha: float) -> None:
    """Set y to x where x > 0, else to alpha·(e^x - 1)."""
    negative = np.minimum(x, 0)
    np.exp(negative, out=negative)
    negative -= 1
    negative *= alpha
    np.maximum(x, 0, out=y)
    y += negative


@kernel
def elu_gradient(x: np.ndarray, dy: np.ndarray, dx: np.ndarray, alpha: float) -> None:
    """Set dx for `elu_forward`."""
    slope = np.minimum(x, 0)
    np.exp(slope, out=slope)
    if alpha != 1:
        negative = (x <= 0).astype(x.dtype)
        negative *= alpha - 1
        negative += 1
        slope *= negative
    np.multiply(dy, slope, out=dx)


@kernel
def exp_forward(x: np.ndarray, y: np.ndarray, scale: float, shift: float) -> None:
    """Set y to e^(shift + scale·x)."""
    np.multiply(x, scale, out=y)
    y += shift
    np.exp(y, out=y)


@kernel
def exp_gradient(y: np.ndarray, dy: np.ndarray, dx: np.ndarray, scale: float) -> None:
    """Set dx for y = e^(shift + scale·x)."""
    factor = y * scale
    np.multiply(dy, factor, out=dx)


@kernel
def log_forward(x: np.ndarray, y: np.ndarray, factor: float, scale: float, shift: float) -> None:
    """Set y to factor·log(shift + scale·x)."""
    np.multiply(x, scale, out=y)
    y += shift
    np.log(y, out=y)
    y *= factor


@kernel
def log_gradient(
    x: np.ndarray, dy: np.ndarray, dx: np.ndarray, factor: float, scale: float, shift: float
) -> None:
    """Set dx for y = factor·log(shift + scale·x)."""
    argument = x * scale
    argument += shift
    np.divide(scale * factor, argument, out=argument)
    np.multiply(dy, argument, out=dx)


@kernel
def swish_forward(x: np.ndarray, y: np.ndarray, beta: float) -> None:
    """Set y to x·sigmoid(beta·x)."""
    gate = x * beta
    sigmoid(gate, gate)
    np.multiply(x, gate, out=y)


@kernel
def swish_gradient(x: np.ndarray, dy: np.ndarray, dx: np.ndarray, beta: float) -> None:
    """Set dx for y = x·sigmoid(beta·x)."""
    gate = x * beta
    scaled = gate.copy()
    sigmoid(gate, gate)
    # beta·y + gate·(1 - beta·y), with y = x·gate
    scaled *= gate
    scaled += gate - gate * scaled
    np.multiply(dy, scaled, out=dx)
