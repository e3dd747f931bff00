"""SegAccuracy: how well pixels are classified."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.confusion import add_to_confusion
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import axis_of, report
from pycaffe_dist.layers.loss import LabelLayout, wrong_label


@register("SegAccuracy")
class SegAccuracy(Layer):
    """The share of right pixels, the mean recall of classes, and their mean IoU, as (1, 1, 1, 3).

    The recall is the mean over classes that are labels; a class that is neither labelled nor
    predicted has IoU 1.  Without reset the counts add up over batches.  (hszhao/PSPNet.)
    """

    bottoms = Arity(2, 2)
    has_backward = False
    backward_needs_bottom = Need.NONE
    exact = True  # shares

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._counts: Any = None

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._layout = LabelLayout(self, bottom, axis_of(self, bottom, 1, "channel axis"))
        top[0].reshape(1, 1, 1, 3)
        classes = self._layout.classes
        if self._counts is None or len(self._counts) != classes:
            self._counts = xp().zeros((classes, classes), np.int64)
            ignored = np.array(self.param.seg_accuracy_param.ignore_label, np.int64)
            self._ignored = xp().asarray(ignored)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        layout, counts, wrong = self._layout, self._counts, xp().empty(1, np.uint64)
        if self.param.seg_accuracy_param.reset:
            counts.fill(0)
        scores, labels = layout.scores(bottom[0].data), layout.labels(bottom[1].data)
        add_to_confusion(scores, labels, self._ignored, counts, wrong)
        report(wrong, wrong_label(self, bottom, layout))
        right, labelled, predicted = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
        total = np.maximum(labelled.sum(), 1)
        recall = right / np.maximum(labelled, 1)
        either = labelled + predicted - right
        shares = np.where(either > 0, right / np.maximum(either, 1), 1.0)
        result = top[0].data.reshape(-1)
        result[0] = right.sum() / total
        result[1] = recall.sum() / np.maximum(np.count_nonzero(labelled), 1)
        result[2] = shares.mean()
