"""Scores that change at their label: LabelSpecificAdd and LabelSpecificRescale."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.layers.base import Arity, Layer, Need, is_test, register
from pycaffe_dist.layers.checking import require_no_gradient
from pycaffe_dist.layers.counting import Counting
from pycaffe_dist.layers.loss import LabelLayout, checked_labels


class _LabelMargin(Layer):
    """The base of layers of scores (N, classes) and labels (N)."""

    in_place = True
    bottoms = Arity(2, 2)

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Labels have no gradient."""
        return bottom_index == 0

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._layout = LabelLayout(self, bottom)
        top[0].reshape_like(bottom[0])

    def own(self, bottom: list[Blob]) -> tuple[Any, Any]:
        """Return the indices of each sample's own score."""
        labels, _ = checked_labels(self, bottom, self._layout, None)
        return xp().arange(self._layout.outer), labels.reshape(-1)

    def rows(self, array: Any) -> Any:
        """Return scores as a matrix."""
        return array.reshape(self._layout.outer, self._layout.classes)


@register("LabelSpecificAdd")
class LabelSpecificAdd(_LabelMargin, Counting):
    """In training, adds a bias, such as a negative margin, to each label's score above -bias.

    With bias_base the bias is bias_base + (1 + bias_gamma·iteration)^bias_power - 1, between
    bias_min and bias_max, from ``iteration`` on.  A second top gets it: (1,).  In the TEST phase
    nothing is added.  The gradient is the top's.  Follows happynear/caffe-windows.  (Wang et al.,
    2018: AM-Softmax.)
    """

    tops = Arity(1, 2)
    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.iteration = self.param.label_specific_add_param.iteration

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if len(top) > 1:
            top[1].reshape(1)

    def _bias(self) -> float:
        """Count a pass in training; return its bias."""
        param = self.param.label_specific_add_param
        if is_test(self.phase):
            return 0.0
        if not param.HasField("bias_base"):
            return float(param.bias)
        with np.errstate(all="ignore"):
            change = np.power(1 + param.bias_gamma * self.iteration, param.bias_power)
        self.iteration += 1
        return float(min(max(param.bias_base + change - 1, param.bias_min), param.bias_max))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        bias = self._bias()
        if top[0] is not bottom[0]:
            np.copyto(top[0].data, bottom[0].data)
        if len(top) > 1:
            top[1].data.fill(bias)
        if bias:
            at, y = self.own(bottom), self.rows(top[0].data)
            scores = y[at]
            y[at] = np.where(scores > -bias, scores + scores.dtype.type(bias), scores)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 1)
        if propagate_down[0] and top[0] is not bottom[0]:
            np.copyto(bottom[0].diff, top[0].diff)


@register("LabelSpecificRescale")
class LabelSpecificRescale(_LabelMargin):
    """In training, multiplies each label's score by positive_weight, the others by negative_weight.

    With rescale_test in the TEST phase, too.  Follows the first version of the layer in
    happynear/caffe-windows, which has dropped it since.
    """

    backward_needs_bottom = Need.NONE

    def _rescale(self, x: Any, y: Any) -> None:
        param = self.param.label_specific_rescale_param
        if is_test(self.phase) and not param.rescale_test:
            if x is not y:
                np.copyto(y, x)
            return
        x, y = self.rows(x), self.rows(y)
        positive = x[self._own] * x.dtype.type(param.positive_weight)
        np.multiply(x, x.dtype.type(param.negative_weight), out=y)
        y[self._own] = positive

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._own = self.own(bottom)
        self._rescale(bottom[0].data, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 1)
        if propagate_down[0]:
            self._rescale(top[0].diff, bottom[0].diff)
