"""Losses of distances to class centres: GeneralContrastiveLoss and GeneralTripletLoss."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.layers.base import Arity, register
from pycaffe_dist.layers.checking import describe
from pycaffe_dist.layers.loss import LabelLayout, Loss, checked_labels


class _DistanceLoss(Loss):
    """The base of losses of distances (N, classes) and labels (N).

    An optional second top gets the mean positive and negative distance: (2,).
    """

    tops = Arity(1, 2)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self._layout = LabelLayout(self, bottom)
        if self._layout.classes < 2:
            raise self.error(
                f"needs distances to 2 classes or more, found bottom {describe(self, bottom, 0)}"
            )
        if len(top) > 1:
            top[1].reshape(2)

    def _distances(self, bottom: list[Blob]) -> Any:
        return bottom[0].data.reshape(self._layout.outer, self._layout.classes)

    def _find_own(self, bottom: list[Blob]) -> None:
        """Set which distances are to the label: their places, and a mask (N, classes)."""
        labels, _ = checked_labels(self, bottom, self._layout, None)
        self._at = xp().arange(len(labels)), labels.reshape(-1)
        self._is_own = xp().arange(self._layout.classes) == labels

    def _set_means(self, top: list[Blob], positive: Any, negative: Any) -> None:
        """Give the second top the mean distances."""
        if len(top) > 1:
            samples = max(1, self._layout.outer)
            top[1].data[0] = positive.sum() / samples
            top[1].data[1] = negative.sum() / samples / (self._layout.classes - 1)

    def _spread(self, bottom: list[Blob], positive: Any, others: Any, weight: float) -> None:
        """Set the diff from slopes of the labels' distances (N) and the others' (N, classes)."""
        others[self._at] = positive
        scale = weight / max(1, self._layout.outer)
        np.multiply(others, others.dtype.type(scale), out=self._rows_of_diff(bottom))

    def _rows_of_diff(self, bottom: list[Blob]) -> Any:
        return bottom[0].diff.reshape(self._layout.outer, self._layout.classes)


def _only(rows: Any, column: Any) -> Any:
    """Return rows with all but one column of each set to 0."""
    return np.where(xp().arange(rows.shape[1]) == column[:, None], rows, rows.dtype.type(0))


@register("GeneralContrastiveLoss")
class GeneralContrastiveLoss(_DistanceLoss):
    """Positive distances above a margin, and what negative distances lack to theirs, per sample.

    The first are min(positive_outlier_thresh, max(0, d - positive_margin)) · positive_weight, the
    others max(0, negative_margin - d), or e^-d below the margin with exp_negative_weight, times
    negative_weight; magnitudes are summed and divided by the batch.  max_negative_only keeps the
    largest negative part of a sample, max_positive_only the least positive part of the rank's
    batch; positive_first leaves out the negatives of samples whose positive distance is above
    positive_upper_bound.  A second top gets the mean distances beyond the margins.

    Follows happynear/caffe-windows: the gradient ends where d (not d - positive_margin) reaches
    positive_outlier_thresh, a positive distance above positive_upper_bound always has one, and
    normalize_negative divides the negatives' by their sum over normalize_negative and the batch,
    if that is more than positive_weight.  (Wang et al., 2017.)
    """

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        param, distances = self.param.general_contrastive_loss_param, self._distances(bottom)
        self._find_own(bottom)
        own = distances[self._at]
        beyond = np.clip(own - param.positive_margin, 0, param.positive_outlier_thresh)
        positive = beyond * param.positive_weight
        self._near = (distances < param.negative_margin) & ~self._is_own
        lacking = np.where(self._near, param.negative_margin - distances, 0)
        parts = np.exp(-distances) if param.exp_negative_weight else lacking
        negative = np.where(self._near, parts * param.negative_weight, 0)
        self._set_means(top, beyond, lacking)
        if param.max_negative_only:
            self._hardest = self._find_hardest(negative, positive)
            negative = np.where(self._is_own, 0, _only(negative, self._hardest))
        if param.positive_first:
            negative = np.where(own[:, None] > param.positive_upper_bound, 0, negative)
        if param.max_positive_only and len(positive):
            self._chosen = xp().arange(len(positive)) == positive.argmin()
            positive = np.where(self._chosen, positive, 0)
        total = np.absolute(negative).sum(dtype=np.float64) + np.absolute(positive).sum()
        return total / max(1, len(own))

    def _find_hardest(self, negative: Any, positive: Any) -> Any:
        """Return the column of each sample's largest negative part.

        The search begins at column 0, even if it has the label: then no less part is found.
        """
        parts = np.where(self._near, negative, -np.inf)
        parts[:, 0] = np.where(self._at[1] == 0, positive, negative[:, 0])
        return parts.argmax(axis=1)

    def gradient(self, bottom: list[Blob], weight: float) -> None:
        param, distances = self.param.general_contrastive_loss_param, self._distances(bottom)
        own = distances[self._at]
        inside = (own > param.positive_margin) & (own < param.positive_outlier_thresh)
        if param.max_positive_only and len(own):
            inside &= self._chosen
        slopes = np.exp(-distances) if param.exp_negative_weight else np.ones_like(distances)
        others = np.where(self._near, -param.negative_weight * slopes, 0)
        if param.max_negative_only:
            others = _only(others, self._hardest)
        if param.positive_first:
            far = own > param.positive_upper_bound
            inside |= far
            others = np.where(far[:, None], 0, others)
        if param.HasField("normalize_negative"):
            total = np.absolute(others.sum()) / param.normalize_negative / max(1, len(own))
            others /= np.where(total > param.positive_weight, total, 1)
        self._spread(bottom, np.where(inside, param.positive_weight, 0), others, weight)


@register("GeneralTripletLoss")
class GeneralTripletLoss(_DistanceLoss):
    """max(0, positive distance + margin - negative distance)·negative_weight, summed per sample.

    Averaged over the batch.  hardest_only keeps the largest part of a sample; positive_first leaves
    out samples whose positive distance is above positive_upper_bound.  A second top gets the mean
    distances.

    Follows happynear/caffe-windows: the gradient of the positive distance is positive_weight for
    all samples with add_center_loss or above positive_upper_bound, else for samples with a
    loss, whatever the number of negatives.
    """

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        param, distances = self.param.general_triplet_loss_param, self._distances(bottom)
        self._find_own(bottom)
        own = distances[self._at]
        parts = np.maximum(own[:, None] + param.margin - distances, 0)
        parts = np.where(self._is_own, 0, parts)
        self._set_means(top, own, np.where(self._is_own, 0, distances))
        if param.hardest_only:
            parts = _only(parts, parts.argmax(axis=1))
        self._far = own > param.positive_upper_bound
        self._counted = parts > 0
        if param.positive_first:
            parts = np.where(self._far[:, None], 0, parts)
        total = parts.sum(dtype=np.float64) * abs(param.negative_weight)
        return total / max(1, len(own))

    def gradient(self, bottom: list[Blob], weight: float) -> None:
        param, distances = self.param.general_triplet_loss_param, self._distances(bottom)
        others = np.where(self._counted, distances.dtype.type(-param.negative_weight), 0)
        wanted = self._counted.any(axis=1) | param.add_center_loss
        if param.positive_first:
            others = np.where(self._far[:, None], 0, others)
            wanted |= self._far
        self._spread(bottom, np.where(wanted, param.positive_weight, 0), others, weight)
