"""Softmax, and its multinomial logistic loss: SoftmaxWithLoss, SoftmaxWithDist."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.labels import total_loss
from pycaffe_dist.kernels.softmax import (
    NO_LABEL,
    SMALLEST,
    each_label_loss,
    label_loss,
    label_loss_gradient,
    softmax_backward,
    softmax_forward,
)
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import axis_of, describe, report, require_no_gradient
from pycaffe_dist.layers.loss import (
    VALID,
    LabelLayout,
    Loss,
    checked_labels,
    normalization_of,
    wrong_label,
)


@register("Softmax")
class Softmax(Layer):
    """y = e^x / the sum of e^x along ``axis``."""

    in_place = True
    backward_needs_bottom = Need.NONE
    backward_needs_top = Need.VALUE
    only_kernels = True

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        axis = axis_of(self, bottom, self.param.softmax_param.axis)
        top[0].reshape_like(bottom[0])
        shape = bottom[0].shape
        self._shape = bottom[0].count_of(0, axis), shape[axis], bottom[0].count_of(axis + 1)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        softmax_forward(bottom[0].data.reshape(self._shape), top[0].data.reshape(self._shape))

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            arrays = top[0].data, top[0].diff, bottom[0].diff
            softmax_backward(*(array.reshape(self._shape) for array in arrays))


@register("SoftmaxWithLoss")
class SoftmaxWithLoss(Loss):
    """-log(softmax of the label's class), averaged; a second top gets the probabilities.

    With weight_by_label_freqs each label's loss is multiplied with class_weighting of its class,
    and the divisor still counts labels (alexgkendall/caffe-segnet).
    """

    tops = Arity(1, 2)
    # The labels; the probabilities are kept here.
    backward_needs_bottom = Need.VALUE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param, kind = self.param.loss_param, self.param.softmax_param.normalize_type
        if kind != "Softmax":
            raise self.error(f"needs normalize_type 'Softmax', found '{kind}'")
        self._ignore = param.ignore_label if param.HasField("ignore_label") else NO_LABEL
        self._normalization = normalization_of(param)
        self.uses_rank_mean = self._ignore != NO_LABEL and self._normalization == VALID
        weights = param.class_weighting if param.weight_by_label_freqs else ()
        self._weights = xp().array(list(weights), np.float64)
        self._probability = self.new_blob()
        # The loss and its divisor; the first wrong label.
        self._total, self._wrong = xp().ones(2), xp().zeros(1, np.uint64)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        axis = axis_of(self, bottom, self.param.softmax_param.axis)
        self._layout = layout = LabelLayout(self, bottom, axis)
        if self.param.loss_param.weight_by_label_freqs and len(self._weights) != layout.classes:
            raise self.error(
                f"with weight_by_label_freqs needs class_weighting for each of {layout.classes} "
                f"classes of bottom {describe(self, bottom, 0)}, found {len(self._weights)}"
            )
        self._probability.reshape_like(bottom[0])
        if len(top) > 1:
            top[1].reshape_like(bottom[0])
        self._losses, self._valid = xp().zeros(layout.outer), xp().zeros(layout.outer, np.int64)
        self._wrong_at = xp().full(layout.outer, -1, np.int64)

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        layout = self._layout
        probability = layout.scores(self._probability.data)
        softmax_forward(layout.scores(bottom[0].data), probability)
        labels = layout.labels(bottom[1].data)
        results = self._losses, self._valid, self._wrong_at
        label_loss(probability, labels, self._weights, self._ignore, *results)
        sizes = layout.outer, layout.outer * layout.inner
        fixed = self.param.loss_param.pre_fixed_normalizer
        divisor = self.divisor(self._normalization, sizes, self._valid, fixed)
        total_loss(*results, labels, divisor, self._total, self._wrong)
        report(self._wrong, wrong_label(self, bottom, layout))
        if len(top) > 1:
            np.copyto(top[1].data, self._probability.data)
        return self._total[0]

    def gradient(self, bottom: list[Blob], weight: float) -> None:
        layout = self._layout
        label_loss_gradient(
            layout.scores(self._probability.data),
            layout.labels(bottom[1].data),
            self._weights,
            self._ignore,
            weight,
            self._total[1:],
            layout.scores(bottom[0].diff),
        )


@register("SoftmaxWithLossOHEM")
class SoftmaxWithLossOHEM(SoftmaxWithLoss):
    """SoftmaxWithLoss whose third top is each label's loss, for BoxAnnotatorOHEM (intel/caffe).

    The third top has the labels' shape, is not normalized, and is 0 for ignored labels.
    """

    tops = Arity(1, 3)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if len(top) > 2:
            top[2].reshape_like(bottom[1])

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        loss = super().loss(bottom, top)
        if len(top) > 2:
            labels, losses = (self._layout.labels(b.data) for b in (bottom[1], top[2]))
            probability = self._layout.scores(self._probability.data)
            each_label_loss(probability, labels, self._ignore, losses)
        return loss


@register("SoftmaxWithDist")
class SoftmaxWithDist(Layer):
    """-log(softmax of the label's class) of each sample and position, over the positions.

    The bottoms are scores and labels; the top is (samples, 1, 1, positions), a second top gets the
    probabilities, without a gradient.  Follows swift-n-brutal/caffe.
    """

    bottoms = Arity(2, 2)
    tops = Arity(1, 2)
    # The probabilities are kept here, as are the labels.
    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._probability = self.new_blob()

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Labels have no gradient."""
        return bottom_index == 0

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        axis = axis_of(self, bottom, self.param.softmax_param.axis)
        self._layout = LabelLayout(self, bottom, axis)
        self._probability.reshape_like(bottom[0])
        top[0].reshape(self._layout.outer, 1, 1, self._layout.inner)
        if len(top) > 1:
            top[1].reshape_like(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        layout = self._layout
        self._labels, _ = checked_labels(self, bottom, layout, None)
        probability = layout.scores(self._probability.data)
        softmax_forward(layout.scores(bottom[0].data), probability)
        own = np.take_along_axis(probability, self._labels[:, None, :], 1)
        distance = -np.log(np.maximum(own, SMALLEST)) / layout.inner
        top[0].data[...] = distance.reshape(top[0].shape)
        if len(top) > 1:
            np.copyto(top[1].data, self._probability.data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 1)
        if propagate_down[0]:
            layout, dx = self._layout, self._layout.scores(bottom[0].diff)
            classes = xp().arange(layout.classes).reshape(1, -1, 1)
            np.subtract(
                layout.scores(self._probability.data), classes == self._labels[:, None, :], out=dx
            )
            dx *= layout.labels(top[0].diff)[:, None, :] / layout.inner
