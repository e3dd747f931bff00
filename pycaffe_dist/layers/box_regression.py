"""DecodeBBox and BboxAccuracy: boxes from predicted moves, and how well they fit objects.

Boxes are in pixels and include the pixels of both borders, so a width is x2 - x1 + 1.
"""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import Arity, Constant, Layer, is_test, register
from pycaffe_dist.layers.checking import describe, require_boxes, require_same_batch

# In BboxAccuracy, boxes that overlap their object more than this are objects themselves.
SAME_BOX = 0.975


def mean_and_std(layer: Layer) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and deviation (4,) of moves from bbox_reg_param; 0 and 1 without them."""
    param, kind = layer.param.bbox_reg_param, layer.context.dtype
    if not param.bbox_mean and not param.bbox_std:
        return np.zeros(4, kind), np.ones(4, kind)
    mean, std = np.array(param.bbox_mean, kind), np.array(param.bbox_std, kind)
    if mean.size != 4 or std.size != 4 or not (std > 0).all():
        raise layer.error(
            "needs bbox_mean and bbox_std 4 times each, bbox_std above 0, or none of them; found "
            f"{list(param.bbox_mean)} and {list(param.bbox_std)}"
        )
    return mean, std


def _require_columns(layer: Layer, bottom: list[Blob], index: int, columns: int) -> None:
    require_same_batch(layer, bottom, 1, index)
    if bottom[index].count_of(1) != columns:
        raise layer.error(
            f"needs {columns} numbers per box, found bottom {describe(layer, bottom, index)}"
        )


def decoded(boxes: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Return the boxes (R, 4) that moves (R, 4) make of boxes: shifts in sizes, log of factors."""
    size = boxes[:, 2:] - boxes[:, :2] + 1
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2 + moves[:, :2] * size
    reach = (size * np.exp(moves[:, 2:]) - 1) / 2
    return np.concatenate([centre - reach, centre + reach], axis=1)


def encoded(boxes: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the moves (R, 4) that make targets (R, 4) of boxes, see `decoded`."""
    size, wanted = (each[:, 2:] - each[:, :2] + 1 for each in (boxes, targets))
    shift = (targets - boxes).reshape(-1, 2, 2).sum(axis=1) / 2
    return np.concatenate([shift / size, np.log(wanted / size)], axis=1)


def overlaps(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union of boxes (…, 4) and others; 0 for boxes without a size."""
    low = np.maximum(boxes[..., :2], others[..., :2])
    shared = np.minimum(boxes[..., 2:], others[..., 2:]) - low + 1
    sizes = [each[..., 2:] - each[..., :2] + 1 for each in (boxes, others)]
    real = (sizes[0] > 0).all(axis=-1) & (sizes[1] > 0).all(axis=-1)
    # As in the fork, boxes that reach less than a whole pixel into each other share nothing.
    area = np.where((shared >= 1).all(axis=-1) & real, shared.prod(axis=-1), 0)
    union = sizes[0].prod(axis=-1) + sizes[1].prod(axis=-1) - area
    return np.divide(area, union, out=np.zeros_like(area), where=real)


@register("DecodeBBox")
class DecodeBBox(Constant):
    """The boxes that predicted moves make of boxes (zhaoweicai/cascade-rcnn).

    Bottoms: moves (R, 8), of which the last four count, times bbox_std plus bbox_mean; boxes
    (R, 5), rows of image, x1, y1, x2, y2; in training, the matched objects of ProposalTarget
    (R, 6).  Training leaves out boxes without a size and, with the third bottom, boxes that overlap
    their object by gt_iou_thr or more.
    """

    host_only = True
    bottoms = Arity(2, 3)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._mean, self._std = mean_and_std(self)
        if len(bottom) > 2 and is_test(self.phase):
            raise self.error("takes matched objects, its third bottom, in the TRAIN phase only")
        top[0].reshape_like(bottom[1])

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_boxes(self, bottom, 1)
        _require_columns(self, bottom, 0, 8)
        if len(bottom) > 2:
            _require_columns(self, bottom, 2, 6)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        rows = bottom[1].data.reshape(-1, 5)
        moves = bottom[0].data.reshape(-1, 8)[:, 4:] * self._std + self._mean
        boxes = decoded(rows[:, 1:], moves)
        kept = np.ones(len(boxes), bool)
        if not is_test(self.phase):
            kept &= (boxes[:, :2] <= boxes[:, 2:]).all(axis=1)
            if len(bottom) > 2:
                overlap = bottom[2].data.reshape(-1, 6)[:, 5]
                kept &= overlap < self.param.decode_bbox_param.gt_iou_thr
        if len(boxes) and not kept.any():
            raise self.error(
                f"leaves out all of its {len(boxes)} boxes: they have no size or overlap their "
                "object by gt_iou_thr or more"
            )
        top[0].reshape(int(kept.sum()), 5, 1, 1)
        top[0].data[:, 0, 0, 0] = rows[kept, 0]
        top[0].data[:, 1:, 0, 0] = boxes[kept]


@register("BboxAccuracy")
class BboxAccuracy(Layer):
    """The mean overlap of predicted boxes with their objects (zhaoweicai/cascade-rcnn).

    Bottoms: moves (R, 4·classes), or (R, 8) without cls_aware; boxes (R, 5), rows of image, x1, y1,
    x2, y2; their objects (R, 6), rows of label, x1, y1, x2, y2 and overlap, label 0 for none.  A
    second top has the overlap of the boxes before the moves.  Boxes that are objects themselves do
    not count; without any object both are -1.
    """

    host_only = True
    has_backward = False
    bottoms = Arity(3, 3)
    tops = Arity(1, 2)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._mean, self._std = mean_and_std(self)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_boxes(self, bottom, 1)
        columns = bottom[0].count_of(1) // 4 * 4 if self.param.bbox_reg_param.cls_aware else 8
        _require_columns(self, bottom, 0, columns)
        _require_columns(self, bottom, 2, 6)
        for blob in top:
            blob.reshape(1, 1, 1, 1)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        objects = bottom[2].data.reshape(-1, 6)
        counted = (objects[:, 0] > 0) & (objects[:, 5] <= SAME_BOX)
        objects, boxes = objects[counted], bottom[1].data.reshape(-1, 5)[counted, 1:]
        numbers = bottom[0].data.reshape(len(counted), bottom[0].count_of(1) // 4, 4)[counted]
        label = objects[:, 0].astype(np.int64)
        if not self.param.bbox_reg_param.cls_aware:
            label = np.minimum(label, 1)
        if (label >= numbers.shape[1]).any():
            raise self.error(
                f"label {label.max()} in bottom {describe(self, bottom, 2)} is none of the "
                f"{numbers.shape[1]} classes of bottom {describe(self, bottom, 0)}"
            )
        moves = numbers[np.arange(len(label)), label] * self._std + self._mean
        for blob, found in zip(top, (decoded(boxes, moves), boxes)):
            overlap = overlaps(found, objects[:, 1:5])
            blob.data[...] = overlap.mean() if len(overlap) else -1
