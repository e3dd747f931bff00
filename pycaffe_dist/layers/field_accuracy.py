"""DetectionAccuracy and DetectionGroupAccuracy: how right maps of classes and moves are."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.box_regression import mean_and_std
from pycaffe_dist.layers.field_maps import FieldLabels, check_maps


class _FieldAccuracy(Layer):
    """The base of both; a subclass tells the arrays.

    ``border`` is 1 if the pixels at both ends of a box belong to it.
    """

    host_only = True
    has_backward = False
    backward_needs_bottom = Need.NONE
    tops = Arity(1, 2)
    border: int

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._mean, self._std = mean_and_std(self)

    def shape_tops(self, top: list[Blob]) -> None:
        """Give the tops their shapes."""
        for blob, size in zip(top, (2, 1)):
            blob.reshape(1, 1, 1, size)

    def rate(
        self,
        scores: np.ndarray,
        moves: np.ndarray,
        labels: FieldLabels,
        background: float,
        limits: tuple[float, float],
        best: int,
        top: list[Blob],
    ) -> None:
        """Set the tops: of scores (M, classes, cells) the ``best`` count as predictions."""
        label, real = labels.label, ~labels.ignored
        counts = real & ~((label == 0) & (labels.overlap >= background))
        own = np.take_along_axis(scores, np.maximum(label, 0)[:, None], axis=1)
        classes = np.arange(scores.shape[1])[:, None]
        ahead = (scores > own) | ((scores == own) & self._wins_ties(classes, label[:, None]))
        right = ahead.sum(axis=1) < best
        objects = counts & (label > 0)
        top[0].data[...] = _mean(right[counts]), _mean(right[objects])
        if len(top) > 1:
            top[1].data[...] = _mean(self._overlap(moves, labels, limits)[real & (label > 0)])

    def _wins_ties(self, classes: np.ndarray, label: np.ndarray) -> np.ndarray:
        """Tell which classes are ahead of a label with the same score: the larger ones."""
        return classes > label

    def _overlap(
        self, moves: np.ndarray, labels: FieldLabels, limits: tuple[float, float]
    ) -> np.ndarray:
        """Return the overlap (M, cells) of moved fields with objects."""
        growth, share = limits
        most = np.repeat([1 / share, np.log(growth)], 2)[:, None]
        moves = np.clip(moves * self._std[:, None] + self._mean[:, None], -most, most)
        centre = moves[:, :2] * labels.size + labels.centre
        size = np.exp(moves[:, 2:]) * labels.size
        wanted, its_size = labels.boxes[:, :2], labels.boxes[:, 2:]
        low = np.maximum(centre - size / 2, wanted - its_size / 2)
        high = np.minimum(centre + size / 2, wanted + its_size / 2)
        shared = high - low
        # Boxes with borders share nothing if they share less than a pixel.
        shares = (shared > 0) if not self.border else (shared >= self.border)
        area = np.where(shares.all(axis=1), shared.prod(axis=1), 0)
        union = size.prod(axis=1) + its_size.prod(axis=1) - area
        real = (its_size > 0).all(axis=1)
        return np.divide(area, union, out=np.zeros_like(union), where=real)


def _mean(values: np.ndarray) -> float:
    """Return the mean, -1 of nothing."""
    return float(values.mean()) if values.size else -1.0


@register("DetectionAccuracy")
class DetectionAccuracy(_FieldAccuracy):
    """The shares of cells and of objects with the right class (zhaoweicai/mscnn).

    Bottoms as DetectionLoss has them.  Tops: both shares (1, 1, 1, 2), a class being right among
    the top_k with the largest scores, and the mean overlap of moved fields with their objects.
    Background with an overlap of bg_threshold or more does not count; without anything to count a
    value is -1.
    """

    bottoms = Arity(2, 2)
    border = 0

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        param = self.param.detection_accuracy_param
        if param.cls_num < 2 or param.coord_num != 4 or not param.downsample_rate:
            raise self.error("needs cls_num of at least 2, coord_num 4 and a downsample_rate")
        if not param.field_w or not param.field_h or not 1 <= param.top_k <= param.cls_num:
            raise self.error("needs field_w, field_h, and top_k from 1 to cls_num")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        check_maps(self, bottom, [self.param.detection_accuracy_param.cls_num + 4, 6])
        self.shape_tops(top)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.detection_accuracy_param
        x = bottom[0].data.reshape(*bottom[0].shape[:2], bottom[0].count_of(2))
        fields = np.array([[param.field_w, param.field_h]])
        labels = FieldLabels(self, bottom, 1, fields, param.downsample_rate, param)
        limits = param.field_whr, param.field_xyr
        self.rate(x[:, :-4], x[:, -4:], labels, param.bg_threshold, limits, param.top_k, top)


@register("DetectionGroupAccuracy")
class DetectionGroupAccuracy(_FieldAccuracy):
    """The shares of cells and of objects with the right class (zhaoweicai/cascade-rcnn).

    Bottoms as DetectionGroupLoss has them, tops as DetectionAccuracy.
    """

    bottoms = Arity(3, 3)
    border = 1

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        param = self.param.detection_group_accuracy_param
        if param.cls_num < 2 or not param.stride or not param.field_w:
            raise self.error("needs cls_num of at least 2, a stride, field_w and field_h")
        if len(param.field_w) != len(param.field_h):
            raise self.error("needs field_w and field_h equally often")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.detection_group_accuracy_param
        check_maps(self, bottom, [param.cls_num, 4, 6], len(param.field_w))
        self.shape_tops(top)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.detection_group_accuracy_param
        scores, moves = (b.data.reshape(*b.shape[:2], b.count_of(2)) for b in bottom[:2])
        fields = np.column_stack([param.field_w, param.field_h])
        labels = FieldLabels(self, bottom, 2, fields, param.stride, param)
        limits = param.field_whr, param.field_xyr
        self.rate(scores, moves, labels, param.bg_threshold, limits, 1, top)

    def _wins_ties(self, classes: np.ndarray, label: np.ndarray) -> np.ndarray:
        """Of equal scores the first class's counts."""
        return classes < label
