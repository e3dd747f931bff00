"""Losses of class labels: HingeLoss, MultinomialLogisticLoss, InfogainLoss."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.errors import PcaffeError
from pycaffe_dist.kernels.softmax import softmax_forward
from pycaffe_dist.layers.base import Arity, Need, register
from pycaffe_dist.layers.checking import axis_of, describe
from pycaffe_dist.layers.loss import VALID, LabelLayout, Loss, checked_labels, normalization_of
from pycaffe_dist.schema import caffe_pb2

# The lower limit of probabilities in logarithms, as in Caffe.
SMALLEST_PROBABILITY = 1e-20


@register("HingeLoss")
class HingeLoss(Loss):
    """max(0, 1 - x) for the label's score and max(0, 1 + x) for the others, or their squares."""

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self._layout = LabelLayout(self, bottom)
        self._squared = self.param.hinge_loss_param.norm == caffe_pb2.HingeLossParameter.L2

    def _margins(self, bottom: list[Blob]) -> tuple[np.ndarray, np.ndarray]:
        """Return max(0, 1 ± x) and the signs, both (N, classes)."""
        labels, _ = checked_labels(self, bottom, self._layout, None)
        scores = self._layout.scores(bottom[0].data)[:, :, 0]
        signs = np.ones_like(scores)
        np.put_along_axis(signs, labels, -1, axis=1)
        return np.maximum(1 + signs * scores, 0), signs

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        margins, _ = self._margins(bottom)
        if self._squared:
            margins *= margins
        return margins.sum(dtype=np.float64) / len(margins)

    def gradient(self, bottom: list[Blob], weight: float) -> None:
        margins, signs = self._margins(bottom)
        scale = weight / len(margins)
        dx = self._layout.scores(bottom[0].diff)[:, :, 0]
        if self._squared:
            np.multiply(margins, signs * (2 * scale), out=dx)
        else:
            np.multiply(margins > 0, signs * scale, out=dx)


@register("MultinomialLogisticLoss")
class MultinomialLogisticLoss(Loss):
    """-log of the probability that bottom[0] gives the label, averaged over the batch."""

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self._layout = LabelLayout(self, bottom)

    def _probabilities(self, bottom: list[Blob]) -> tuple[np.ndarray, np.ndarray]:
        labels, _ = checked_labels(self, bottom, self._layout, None)
        scores = self._layout.scores(bottom[0].data)[:, :, 0]
        own = np.take_along_axis(scores, labels, axis=1)
        own = own.astype(self.context.parameter_dtype, copy=False)
        return np.maximum(own, SMALLEST_PROBABILITY), labels

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        own, _ = self._probabilities(bottom)
        return -np.log(own).sum(dtype=np.float64) / len(own)

    def gradient(self, bottom: list[Blob], weight: float) -> None:
        own, labels = self._probabilities(bottom)
        dx = self._layout.scores(bottom[0].diff)[:, :, 0]
        dx.fill(0)
        np.put_along_axis(dx, labels, -weight / len(own) / own, axis=1)


@register("InfogainLoss")
class InfogainLoss(Loss):
    """-H[label]·log(softmax(x)), averaged; H is a classes×classes matrix.

    H is bottom[2] or the ``.binaryproto`` called ``source``; a second top gets the probabilities.
    """

    bottoms = Arity(2, 3)
    tops = Arity(1, 2)
    backward_needs_bottom = Need.VALUE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        loss_param = self.param.loss_param
        if loss_param.HasField("normalize"):
            raise self.error("does not take the old normalize; use normalization")
        self._ignore = loss_param.ignore_label if loss_param.HasField("ignore_label") else None
        self._normalization = normalization_of(loss_param)
        self.uses_rank_mean = self._ignore is not None and self._normalization == VALID
        self._probability = self.new_blob()
        self._normalizer: Any = 1.0
        self._gain = xp().empty(0)
        if len(bottom) < 3:
            self._gain = self._read_gain()

    def _read_gain(self) -> np.ndarray:
        from pycaffe_dist.schema.binary import read_blob

        source = self.param.infogain_loss_param.source
        if not source:
            raise self.error("needs its matrix as a third bottom or as infogain_loss_param.source")
        try:
            message = read_blob(source)
        except (OSError, PcaffeError) as error:
            raise self.error(f"cannot read the matrix: {error}") from None
        return xp().array(message.data or message.double_data, self.context.dtype)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        axis = axis_of(self, bottom, self.param.infogain_loss_param.axis)
        self._layout = LabelLayout(self, bottom, axis)
        classes = self._layout.classes
        size = bottom[2].count if len(bottom) > 2 else self._gain.size
        if size != classes * classes:
            source = self.param.infogain_loss_param.source
            where = describe(self, bottom, 2) if len(bottom) > 2 else f"'{source}' of {size}"
            raise self.error(f"needs a {classes}×{classes} matrix, found {where}")
        self._probability.reshape_like(bottom[0])
        if len(top) > 1:
            top[1].reshape_like(bottom[0])

    def _rows(self, bottom: list[Blob]) -> tuple[np.ndarray, np.ndarray]:
        """Return each label's row of the matrix, (outer, classes, inner), and the valid labels."""
        labels, counted = checked_labels(self, bottom, self._layout, self._ignore)
        gain = bottom[2].data if len(bottom) > 2 else self._gain
        rows = gain.reshape(self._layout.classes, -1)[labels]
        np.copyto(rows, 0, where=~counted[:, :, None])
        return np.moveaxis(rows, 2, 1), counted

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        layout = self._layout
        probability = layout.scores(self._probability.data)
        softmax_forward(layout.scores(bottom[0].data), probability)
        rows, counted = self._rows(bottom)
        exact = probability.astype(self.context.parameter_dtype, copy=False)
        logs = np.maximum(exact, SMALLEST_PROBABILITY)
        np.log(logs, out=logs)
        logs *= rows
        if len(top) > 1:
            np.copyto(top[1].data, self._probability.data)
        valid = np.count_nonzero(counted)
        sizes, fixed = (layout.outer, counted.size), self.param.loss_param.pre_fixed_normalizer
        divisor = self.divisor(self._normalization, sizes, valid, fixed)
        self._normalizer = divisor or np.maximum(valid, 1.0)
        return -logs.sum(dtype=np.float64) / self._normalizer

    def gradient(self, bottom: list[Blob], weight: float) -> None:
        layout = self._layout
        rows, _ = self._rows(bottom)
        dx = layout.scores(bottom[0].diff)
        np.multiply(layout.scores(self._probability.data), rows.sum(axis=1, keepdims=True), out=dx)
        dx -= rows
        dx *= weight / self._normalizer
