"""FrcnnOutput and ScaleRoute: the best boxes of classes, and boxes of some size."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.proposals import best_boxes
from pycaffe_dist.layers.base import Arity, Constant, register
from pycaffe_dist.layers.box_regression import decoded, mean_and_std
from pycaffe_dist.layers.checking import describe, require_boxes, require_same_batch
from pycaffe_dist.log import logger

# A box of this scale, the square root of its area, is neither small nor large.
_MIDDLE = 256.0


@register("FrcnnOutput")
class FrcnnOutput(Constant):
    """The best boxes of each class in an image (zhaoweicai/cascade-rcnn).

    Bottoms: probabilities (R, classes), moves (R, 4·classes), or (R, 8) without cls_aware, boxes
    (R, 5 or 6), rows of image 0, x1, y1, x2, y2, and the input's height and width (1, 2).  The top
    is (K, 7, 1, 1): image, x1, y1, x2, y2, class and probability, by class, the best first; the
    first row is -1 but for the image.  A box stays with a probability of at least conf_thr and if
    it overlaps no better one of its class more than iou_thr; max_det_num limits all.  Files of
    save_output_param are not written.
    """

    host_only = True
    bottoms = Arity(4, 4)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._mean, self._std = mean_and_std(self)
        param = self.param.frcnn_output_param
        if param.nms_type != "IOU":
            raise self.error(f"supports nms_type IOU only, found {param.nms_type}")
        if param.save_output_param.output_directory:
            logger.warning("Layer '%s' writes no files: save_output_param is left out", self.name)
        top[0].reshape(1, 7, 1, 1)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        classes = bottom[0].count_of(1)
        wanted = 4 * classes if self.param.bbox_reg_param.cls_aware else 8
        for index, columns in ((1, (wanted,)), (2, (5, 6))):
            require_same_batch(self, bottom, 0, index)
            if bottom[index].count_of(1) not in columns:
                raise self.error(
                    f"needs {' or '.join(map(str, columns))} numbers per box, found bottom "
                    f"{describe(self, bottom, index)}"
                )
        if bottom[3].count != 2:
            raise self.error(
                f"takes one image, a height and a width, found bottom {describe(self, bottom, 3)}"
            )

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.frcnn_output_param
        prob, moves, rows = (b.data.reshape(b.shape[0], b.count_of(1)) for b in bottom[:3])
        for index, values in enumerate((prob, moves, rows)):
            if not np.isfinite(values).all():
                where = describe(self, bottom, index)
                raise self.error(f"needs finite numbers, found others in bottom {where}")
        boxes = self._decoded(moves, rows[:, 1:5], prob.shape[1])
        height, width = bottom[3].data.reshape(-1)
        boxes[..., :2] = np.maximum(boxes[..., :2], 0)
        boxes[..., 2:] = np.minimum(boxes[..., 2:], [width, height])
        # The pixels at both ends belong to a box.
        edges = boxes + np.array([0, 0, 1, 1], boxes.dtype)
        chances = np.where(prob.T[1:] >= param.conf_thr, prob.T[1:], -np.inf).astype(prob.dtype)
        label, chosen = best_boxes(edges, chances, len(rows), len(rows), param.iou_thr)
        score = chances[label, chosen]
        if 0 < param.max_det_num < len(chosen):
            best = np.sort(np.argsort(-score, kind="stable")[: param.max_det_num])
            label, chosen, score = label[best], chosen[best], score[best]
        top[0].reshape(1 + len(chosen), 7, 1, 1)
        found = top[0].data.reshape(-1, 7)
        found.fill(-1)
        found[:, 0] = 0
        found[1:, 1:5], found[1:, 5], found[1:, 6] = boxes[label, chosen], label + 1, score

    def _decoded(self, moves: np.ndarray, boxes: np.ndarray, classes: int) -> np.ndarray:
        """Return the moved boxes (classes without background, R, 4)."""
        columns = moves.reshape(len(moves), moves.shape[1] // 4, 4) * self._std + self._mean
        found = [decoded(boxes, columns[:, index]) for index in range(1, columns.shape[1])]
        if not self.param.bbox_reg_param.cls_aware:
            found *= classes - 1
        return np.stack(found) if found else np.empty((0, len(boxes), 4), boxes.dtype)


@register("ScaleRoute")
class ScaleRoute(Constant):
    """The rows of all bottoms whose box has a scale in a range (zhaoweicai/cascade-rcnn).

    Bottoms: boxes (R, 5), rows of image, x1, y1, x2, y2, and others of R rows; a top for each.  A
    box's scale, the square root of its area, is from low_scale up to, without, high_scale.  If
    there is no such box, the one nearest to the middle of the range stays.
    """

    host_only = True
    bottoms = tops = Arity(1, None)
    equal_bottoms_and_tops = True
    idle_when_empty = False

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.scale_route_param
        low, high = (
            getattr(param, name) if param.HasField(name) else None
            for name in ("low_scale", "high_scale")
        )
        if any(limit is not None and limit <= 0 for limit in (low, high)) or (
            low is not None and high is not None and high < low
        ):
            raise self.error(f"needs 0 < low_scale <= high_scale, found {low} and {high}")
        self._range = 0.0 if low is None else low, np.inf if high is None else high
        given = [limit for limit in (low, high) if limit is not None]
        self._middle = float(np.prod(given)) ** (1 / len(given)) if given else _MIDDLE

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_boxes(self, bottom, 0)
        for index, (source, target) in enumerate(zip(bottom, top)):
            require_same_batch(self, bottom, 0, index)
            # As many as can be said before forward.
            target.reshape(min(1, source.shape[0]), *source.shape[1:])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        boxes = bottom[0].data.reshape(-1, 5)[:, 1:].astype(np.float64)
        if not len(boxes):
            return
        sizes = boxes[:, 2:] - boxes[:, :2] + 1
        scale = np.sqrt(np.where((sizes >= 1).all(axis=1), sizes.prod(axis=1), 0))
        chosen = np.flatnonzero((scale >= self._range[0]) & (scale < self._range[1]))
        if not chosen.size:
            distance = np.abs(np.log2(np.maximum(scale, 1e-30) / self._middle))
            chosen = np.array([distance.argmin()])
        for source, target in zip(bottom, top):
            target.reshape(len(chosen), *source.shape[1:])
            target.data[...] = source.data[chosen]
