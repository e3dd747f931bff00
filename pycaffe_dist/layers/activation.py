"""Element-wise layers: each top element is a function of the bottom element in its place."""

from __future__ import annotations

import math

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.activation import relu_backward, relu_forward
from pycaffe_dist.kernels.elementwise import blockwise
from pycaffe_dist.kernels.exponential import sigmoid
from pycaffe_dist.layers.base import Layer, Need, register


class Neuron(Layer):
    """The base of layers given by ``function`` and ``gradient`` on flat arrays.

    ``gradient`` gets the top's values if ``backward_needs_top``, else the bottom's; in place, where
    these are gone, a copy of them.
    """

    in_place = True
    _copy: Blob | None = None

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        """Set y; it may be x."""
        raise NotImplementedError

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        """Set dx; it may be dy."""
        raise NotImplementedError

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape_like(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom[0] is top[0] and self.backward_needs_bottom and self.has_backward:
            self._copy = self._copy or self.new_blob()
            self._copy.reshape_like(bottom[0])
            np.copyto(self._copy.data, bottom[0].data)
        blockwise(self.function, bottom[0].data, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        if self.backward_needs_top:
            values = top[0]
        else:
            values = self._copy if bottom[0] is top[0] and self._copy else bottom[0]
        blockwise(self.gradient, values.data, top[0].diff, bottom[0].diff)


@register("ReLU")
class ReLU(Layer):
    """y = x where x > 0, else negative_slope·x."""

    in_place = True
    keeps_sign = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._slope = self.param.relu_param.negative_slope
        if self._slope < 0 and bottom[0] is top[0]:
            raise self.error(
                f"cannot work in place with negative_slope {self._slope}: the signs are lost"
            )

    @property
    def rectifier_slope(self) -> float | None:
        """The negative slope."""
        return self.param.relu_param.negative_slope

    @property
    def backward_needs_bottom(self) -> Need:  # type: ignore[override]
        """The sign of x; that of y will do unless the slope turns it."""
        return Need.SIGN if self.param.relu_param.negative_slope < 0 else Need.NONE

    @property
    def backward_needs_top(self) -> Need:  # type: ignore[override]
        """The sign of y."""
        return Need.NONE if self.param.relu_param.negative_slope < 0 else Need.SIGN

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape_like(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        relu_forward(bottom[0].data, top[0].data, self._slope)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            sign = bottom[0] if self._slope < 0 else top[0]
            relu_backward(sign.data, top[0].diff, bottom[0].diff, self._slope)


@register("Sigmoid")
class Sigmoid(Neuron):
    """y = 1 / (1 + e^-x)."""

    backward_needs_bottom = Need.NONE
    backward_needs_top = Need.VALUE

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        sigmoid(x, y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        factor = values - values * values
        np.multiply(dy, factor, out=dx)


@register("TanH")
class TanH(Neuron):
    """y = tanh x."""

    backward_needs_bottom = Need.NONE
    backward_needs_top = Need.VALUE

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        np.tanh(x, out=y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        factor = values * values
        np.subtract(1, factor, out=factor)
        np.multiply(dy, factor, out=dx)


@register("Power")
class Power(Neuron):
    """y = (shift + scale·x)^power."""

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.power_param
        self._power, self._scale, self._shift = param.power, param.scale, param.shift

    @property
    def backward_needs_bottom(self) -> Need:  # type: ignore[override]
        """Nothing, where the gradient is constant."""
        param = self.param.power_param
        return Need.NONE if param.power in (0, 1) or param.scale == 0 else Need.VALUE

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        if self._power == 0 or self._scale == 0:
            y[...] = np.power(np.float64(self._shift), self._power)
            return
        np.multiply(x, self._scale, out=y)
        y += self._shift
        if self._power != 1:
            np.power(y, self._power, out=y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        factor = self._power * self._scale
        if not self.backward_needs_bottom:
            np.multiply(dy, factor, out=dx)
            return
        slope = values * self._scale
        slope += self._shift
        if self._power != 2:
            np.power(slope, self._power - 1, out=slope)
        slope *= factor
        np.multiply(dy, slope, out=dx)


@register("AbsVal")
class AbsVal(Neuron):
    """y = |x|."""

    backward_needs_bottom = Need.VALUE

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        np.absolute(x, out=y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        np.multiply(dy, np.sign(values), out=dx)


@register("BNLL")
class BNLL(Neuron):
    """y = log(1 + e^x), the binomial normal log likelihood."""

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        np.logaddexp(x, 0, out=y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        factor = np.empty_like(values)
        sigmoid(values, factor)
        np.multiply(dy, factor, out=dx)


@register("Clip")
class Clip(Neuron):
    """y = x, kept between min and max."""

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._low, self._high = self.param.clip_param.min, self.param.clip_param.max

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        np.clip(x, self._low, self._high, out=y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        inside = (values >= self._low) & (values <= self._high)
        np.multiply(dy, inside, out=dx)


@register("ELU")
class ELU(Neuron):
    """y = x where x > 0, else alpha·(e^x - 1)."""

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._alpha = self.param.elu_param.alpha

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        negative = np.minimum(x, 0)
        np.exp(negative, out=negative)
        negative -= 1
        negative *= self._alpha
        np.maximum(x, 0, out=y)
        y += negative

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        slope = np.minimum(values, 0)
        np.exp(slope, out=slope)
        if self._alpha != 1:
            negative = (values <= 0).astype(values.dtype)
            negative *= self._alpha - 1
            negative += 1
            slope *= negative
        np.multiply(dy, slope, out=dx)


@register("Exp")
class Exp(Neuron):
    """y = base^(shift + scale·x); base -1 stands for e."""

    backward_needs_bottom = Need.NONE
    backward_needs_top = Need.VALUE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.exp_param
        log_base = _log_of_base(self, param.base)
        self._scale, self._shift = log_base * param.scale, log_base * param.shift

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        np.multiply(x, self._scale, out=y)
        y += self._shift
        np.exp(y, out=y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        factor = values * self._scale
        np.multiply(dy, factor, out=dx)


@register("Log")
class Log(Neuron):
    """y = log_base(shift + scale·x); base -1 stands for e."""

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.log_param
        log_base = _log_of_base(self, param.base)
        if log_base == 0:
            raise self.error("cannot use base 1: log(1) is 0")
        self._base_scale = 1 / log_base
        self._scale, self._shift = param.scale, param.shift

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        np.multiply(x, self._scale, out=y)
        y += self._shift
        np.log(y, out=y)
        y *= self._base_scale

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        argument = values * self._scale
        argument += self._shift
        np.divide(self._scale * self._base_scale, argument, out=argument)
        np.multiply(dy, argument, out=dx)


def _log_of_base(layer: Layer, base: float) -> float:
    if base == -1:
        return 1.0
    if base <= 0:
        raise layer.error(f"needs a positive base, or -1 for e, found {base}")
    return math.log(base)


@register("Swish")
class Swish(Neuron):
    """y = x · sigmoid(beta·x)."""

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._beta = self.param.swish_param.beta

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        gate = x * self._beta
        sigmoid(gate, gate)
        np.multiply(x, gate, out=y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        gate = values * self._beta
        scaled = gate.copy()
        sigmoid(gate, gate)
        # beta·y + gate·(1 - beta·y), with y = x·gate
        scaled *= gate
        scaled += gate - gate * scaled
        np.multiply(dy, scaled, out=dx)


@register("Threshold")
class Threshold(Neuron):
    """y = 1 where x > threshold, else 0; no gradient."""

    has_backward = False
    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._threshold = self.param.threshold_param.threshold

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        np.greater(x, self._threshold, out=y)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        raise self.error("has no gradient; set propagate_down: false")
