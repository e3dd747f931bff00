"""Element-wise layers: each top element is a function of the bottom element in its place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.activation import (
    clipped_relu_backward,
    clipped_relu_forward,
    relu_backward,
    relu_forward,
)
from pycaffe_dist.kernels.elementwise import blockwise
from pycaffe_dist.kernels.exponential import mish, mish_gradient, sigmoid, tanh
from pycaffe_dist.kernels.neurons import (
    absolute_gradient,
    bnll_forward,
    bnll_gradient,
    clip_gradient,
    elu_forward,
    elu_gradient,
    exp_forward,
    exp_gradient,
    hard_sigmoid_forward,
    hard_sigmoid_gradient,
    log_forward,
    log_gradient,
    power_forward,
    power_gradient,
    sigmoid_gradient,
    swish_forward,
    swish_gradient,
    tanh_gradient,
)
from pycaffe_dist.layers.base import Layer, Need, register


class Neuron(Layer):
    """The base of layers given by ``function`` and ``gradient`` on flat arrays.

    ``gradient`` gets the top's values if ``backward_needs_top``, else the bottom's (in place, a
    copy of them).
    """

    in_place = True
    # Do both use all threads themselves?
    is_parallel: ClassVar[bool] = False
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
        self._run(self.function, bottom[0].data, top[0].data)

    def _run(self, function: Callable[..., None], *arrays: np.ndarray) -> None:
        if self.is_parallel:
            function(*arrays)
        else:
            blockwise(function, *arrays)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        if self.backward_needs_top:
            values = top[0]
        else:
            values = self._copy if bottom[0] is top[0] and self._copy else bottom[0]
        self._run(self.gradient, values.data, top[0].diff, bottom[0].diff)


@register("ReLU")
class ReLU(Layer):
    """y = x where x > 0, else negative_slope·x."""

    in_place = True
    keeps_sign = True
    only_kernels = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self._slope < 0 and bottom[0] is top[0]:
            raise self.error(
                f"cannot work in place with negative_slope {self._slope}: the signs are lost"
            )

    @property
    def _slope(self) -> float:
        return self.param.relu_param.negative_slope

    @property
    def rectifier_slope(self) -> float | None:
        """The negative slope."""
        return self._slope

    @property
    def backward_needs_bottom(self) -> Need:  # type: ignore[override]
        """The sign of x; the sign of y is enough unless the slope inverts it."""
        return Need.SIGN if self._slope < 0 else Need.NONE

    @property
    def backward_needs_top(self) -> Need:  # type: ignore[override]
        """The sign of y."""
        return Need.NONE if self._slope < 0 else Need.SIGN

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape_like(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        relu_forward(bottom[0].data, top[0].data, self._slope)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            sign = bottom[0] if self._slope < 0 else top[0]
            relu_backward(sign.data, top[0].diff, bottom[0].diff, self._slope)


@register("ReLU6")
class ReLU6(ReLU):
    """y = x where x > 0, else negative_slope·x, and 6 at most, as in eric612/MobileNet-YOLO.

    The gradient is 0 for x from 6 on; below 0 it is the slope, even where a negative slope's result
    is cut to 6.
    """

    rectifier_slope = None

    @property
    def _slope(self) -> float:
        return self.param.relu6_param.negative_slope

    @property
    def backward_needs_bottom(self) -> Need:  # type: ignore[override]
        """The value of x; that of y is enough unless the slope inverts its sign."""
        return Need.VALUE if self._slope < 0 else Need.NONE

    @property
    def backward_needs_top(self) -> Need:  # type: ignore[override]
        """The value of y."""
        return Need.NONE if self._slope < 0 else Need.VALUE

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        clipped_relu_forward(bottom[0].data, top[0].data, self._slope, 6)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            value = bottom[0] if self._slope < 0 else top[0]
            clipped_relu_backward(value.data, top[0].diff, bottom[0].diff, self._slope, 6)


@register("Sigmoid")
class Sigmoid(Neuron):
    """y = 1 / (1 + e^-x)."""

    backward_needs_bottom = Need.NONE
    backward_needs_top = Need.VALUE

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        sigmoid(x, y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        sigmoid_gradient(values, dy, dx)


@register("HardSigmoid")
class HardSigmoid(Neuron):
    """y = 0.2·x + 0.5, kept between 0 and 1, as in eric612/MobileNet-YOLO.

    The gradient is the derivative; the fork's is 0.2 everywhere.
    """

    backward_needs_bottom = Need.NONE
    backward_needs_top = Need.VALUE

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        hard_sigmoid_forward(x, y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        hard_sigmoid_gradient(values, dy, dx)


@register("TanH")
class TanH(Neuron):
    """y = tanh x."""

    backward_needs_bottom = Need.NONE
    backward_needs_top = Need.VALUE

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        tanh(x, y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        tanh_gradient(values, dy, dx)


@register("Power")
class Power(Neuron):
    """y = (shift + scale·x)^power."""

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.power_param
        self._power, self._scale, self._shift = param.power, param.scale, param.shift

    @property
    def backward_needs_bottom(self) -> Need:  # type: ignore[override]
        """Nothing, if the gradient is constant."""
        param = self.param.power_param
        return Need.NONE if param.power in (0, 1) or param.scale == 0 else Need.VALUE

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        if self._power == 0 or self._scale == 0:
            y[...] = np.power(np.float64(self._shift), self._power)
        else:
            power_forward(x, y, self._power, self._scale, self._shift)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        if self.backward_needs_bottom:
            power_gradient(values, dy, dx, self._power, self._scale, self._shift)
        else:
            np.multiply(dy, self._power * self._scale, out=dx)


@register("AbsVal")
class AbsVal(Neuron):
    """y = |x|."""

    backward_needs_bottom = Need.VALUE

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        np.absolute(x, out=y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        absolute_gradient(values, dy, dx)


@register("BNLL")
class BNLL(Neuron):
    """y = log(1 + e^x), the binomial normal log likelihood."""

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        bnll_forward(x, y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        bnll_gradient(values, dy, dx)


@register("Clip")
class Clip(Neuron):
    """y = x, kept between min and max."""

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.clip_param
        self._low, self._high = param.min, max(param.min, param.max)

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        np.clip(x, self._low, self._high, out=y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        clip_gradient(values, dy, dx, self._low, self._high)


@register("ELU")
class ELU(Neuron):
    """y = x where x > 0, else alpha·(e^x - 1)."""

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._alpha = self.param.elu_param.alpha

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        elu_forward(x, y, self._alpha)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        elu_gradient(values, dy, dx, self._alpha)


@register("SeLu")
class SeLu(Neuron):
    """y = lambda·x where x > 0, else lambda·alpha·(e^x - 1).

    Follows HolmesShuan/SNNs-Self-Normalizing-Neural-Networks-Caffe-Reimplementation.  (Klambauer et
    al., 2017.)
    """

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.selu_param
        self._alpha, self._lambda = param.alpha, getattr(param, "lambda")

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        elu_forward(x, y, self._alpha)
        y *= self._lambda

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        elu_gradient(values, dy, dx, self._alpha)
        dx *= self._lambda


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
        exp_forward(x, y, self._scale, self._shift)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        exp_gradient(values, dy, dx, self._scale)


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
        log_forward(x, y, self._base_scale, self._scale, self._shift)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        log_gradient(values, dy, dx, self._base_scale, self._scale, self._shift)


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
        swish_forward(x, y, self._beta)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        swish_gradient(values, dy, dx, self._beta)


@register("Mish")
class Mish(Neuron):
    """y = x·tanh(log(1 + e^x)), for nets like ChenYingpeng/caffe-yolov3's (Misra, 2019)."""

    is_parallel = True

    def function(self, x: np.ndarray, y: np.ndarray) -> None:
        mish(x, y)

    def gradient(self, values: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        mish_gradient(values, dy, dx)


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
