"""Accuracy of classifications, and ArgMax."""

from __future__ import annotations

import math

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.labels import class_counts, label_hits
from pycaffe_dist.kernels.largest import largest
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import axis_of, describe
from pycaffe_dist.layers.loss import LabelLayout, checked_labels


@register("Accuracy")
class Accuracy(Layer):
    """The share of labels among their prediction's top_k; a second top has it for each class.

    Classes with the same score as the label count as better, so a tie is not a success.  With
    min_is_better small scores are the best (happynear/caffe-windows).
    """

    bottoms = Arity(2, 2)
    tops = Arity(1, 2)
    averages_samples = True
    has_backward = False
    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.accuracy_param
        self._ignore = param.ignore_label if param.HasField("ignore_label") else None
        self._top_k = param.top_k

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        axis = axis_of(self, bottom, self.param.accuracy_param.axis)
        self._layout = LabelLayout(self, bottom, axis)
        if self._top_k > self._layout.classes:
            raise self.error(
                f"top_k {self._top_k} is more than the {self._layout.classes} classes of bottom "
                f"{describe(self, bottom, 0)}"
            )
        top[0].reshape()
        if len(top) > 1:
            top[1].reshape(self._layout.classes)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        labels, counted = checked_labels(self, bottom, self._layout, self._ignore)
        right = self._right(self._layout.scores(bottom[0].data), labels, counted)
        top[0].data[...] = np.count_nonzero(right) / np.maximum(np.count_nonzero(counted), 1)
        if len(top) > 1:
            hits, seen = (xp().empty(self._layout.classes, np.int64) for _ in range(2))
            class_counts(labels, right, hits)
            class_counts(labels, counted, seen)
            top[1].data[...] = hits / np.maximum(seen, 1)

    def _right(self, scores: np.ndarray, labels: np.ndarray, counted: np.ndarray) -> np.ndarray:
        """Tell which counted labels are among their prediction's top_k."""
        if self.param.accuracy_param.min_is_better:
            scores = -scores
        right = xp().empty(labels.shape, bool)
        label_hits(scores, labels, counted, self._top_k, right)
        return right


@register("EltwiseAccuracy")
class EltwiseAccuracy(Accuracy):
    """The share of pixels whose label is among their prediction's top_k (HyeonwooNoh/caffe).

    Of equal scores the last class comes first.  The V1 type is ELTWISE_ACCURACY.
    """

    tops = Arity(1, 1)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.eltwise_accuracy_param
        if param.top_k < 1:
            raise self.error("needs a top_k of at least 1")
        self._ignore = param.ignore_label if param.HasField("ignore_label") else None
        self._top_k = param.top_k

    def _right(self, scores: np.ndarray, labels: np.ndarray, counted: np.ndarray) -> np.ndarray:
        number = labels[:, None]
        own = np.take_along_axis(scores, number, axis=1)
        later = xp().arange(self._layout.classes)[:, None] > number
        better = np.count_nonzero((scores > own) | ((scores == own) & later), axis=1)
        return (better < self._top_k) & counted


@register("ArgMax")
class ArgMax(Layer):
    """The indices of the top_k largest values along ``axis``, or of the whole sample.

    With out_max_val the values instead of the indices, or, without axis, after them.
    """

    has_backward = False
    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.argmax_param
        if param.top_k < 1:
            raise self.error("needs a top_k of at least 1")
        self._has_axis = param.HasField("axis")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.argmax_param
        axis = axis_of(self, bottom, param.axis) if self._has_axis else 1
        shape = bottom[0].shape
        values = shape[axis] if self._has_axis else bottom[0].count_of(1)
        if param.top_k > values:
            raise self.error(
                f"top_k {param.top_k} is more than the {values} values of bottom "
                f"{describe(self, bottom, 0)}"
            )
        self._axis = axis
        if self._has_axis:
            top[0].reshape(*shape[:axis], param.top_k, *shape[axis + 1 :])
        else:
            ones = (1,) * (len(shape) - 3)
            top[0].reshape(shape[0], 2 if param.out_max_val else 1, param.top_k, *ones)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.argmax_param
        x = bottom[0].data
        if not self._has_axis:
            x = x.reshape(len(x), -1)
        best = _largest(x, param.top_k, self._axis)
        if not param.out_max_val:
            top[0].data[...] = best.reshape(top[0].shape)
            return
        values = np.take_along_axis(x, best, self._axis)
        if self._has_axis:
            top[0].data[...] = values
        else:
            top[0].data[...] = np.stack([best, values], axis=1).reshape(top[0].shape)


def _largest(x: np.ndarray, count: int, axis: int) -> np.ndarray:
    """Return the indices of the ``count`` largest values, largest first; of equals, the last."""
    size = x.shape[axis]
    if count == 1:
        return size - 1 - np.argmax(np.flip(x, axis), axis=axis, keepdims=True)
    outer, inner = x.shape[:axis], x.shape[axis + 1 :]
    places = xp().empty((*outer, count, *inner), np.int64)
    shape = math.prod(outer), -1, math.prod(inner)
    if places.size:
        largest(x.reshape(shape), places.reshape(shape))
    return places
