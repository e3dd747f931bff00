"""ProposalTarget: chooses boxes to train with, with their labels and targets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import Arity, Constant, register
from pycaffe_dist.layers.box_regression import encoded, mean_and_std, overlaps
from pycaffe_dist.layers.checking import describe, require_boxes

# A made-up box is at least so large, in pixels, and is drawn so often.
LEAST, TRIES = 32, 1000


class Sample(NamedTuple):
    """Chosen boxes (K, 5) with the number of their object or -1, their overlap and label (K,)."""

    boxes: np.ndarray
    match: np.ndarray
    overlap: np.ndarray
    label: np.ndarray


@register("ProposalTarget")
class ProposalTarget(Constant):
    """Chooses boxes with and without an object, and tells what they should become.

    Bottoms: boxes (R, 5), rows of image, x1, y1, x2, y2; objects (G, 7 or more), rows of image, x1,
    y1, x2, y2, label, ignored; image -1 is no object.  Tops: chosen boxes (K, 5); labels (K);
    targets of their moves, inside and outside weights (K, 4·cls_num, or 8 without cls_aware);
    objects (K, 6), rows of label, x1, y1, x2, y2 and overlap; and, with a seventh top, weights of
    samples (K), which give boxes with an object the share fg_fraction of all weight.  Without such
    boxes all weights are 1.  (zhaoweicai/cascade-rcnn; Cai and Vasconcelos, 2018.)
    """

    host_only = True
    bottoms = Arity(2, 2)
    tops = Arity(6, 7)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.proposal_target_param
        if param.batch_size < 1 and param.batch_size != -1:
            raise self.error(f"needs a batch_size of at least 1, or -1, found {param.batch_size}")
        if not 0 < param.fg_thr >= param.bg_thr_hg:
            raise self.error(
                f"needs fg_thr above 0 and not below bg_thr_hg, found {param.fg_thr:g} and "
                f"{param.bg_thr_hg:g}"
            )
        self._aware = self.param.bbox_reg_param.cls_aware
        if self._aware and param.cls_num < 2:
            raise self.error(f"needs a cls_num of at least 2, found {param.cls_num}")
        self._mean, self._std = mean_and_std(self)
        self.random = self.rng("boxes")
        size = param.batch_size if param.batch_size > 0 else max(1, bottom[0].shape[0])
        self._shape_tops(size, top)

    def _shape_tops(self, size: int, top: list[Blob]) -> None:
        classes = self.param.proposal_target_param.cls_num if self._aware else 2
        for blob, columns in zip(top, (5, 1, *[4 * classes] * 3, 6, 1)):
            blob.reshape(size, columns, 1, 1)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_boxes(self, bottom, 0)
        if bottom[1].ndim < 2 or bottom[1].count_of(1) < 7:
            raise self.error(
                "needs objects as rows of image, x1, y1, x2, y2, label, ignored, found bottom "
                f"{describe(self, bottom, 1)}"
            )

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        boxes = bottom[0].data.reshape(bottom[0].shape[0], 5)
        objects = bottom[1].data.reshape(bottom[1].shape[0], -1)
        objects = objects[objects[:, 0] != -1]
        for index, rows in enumerate((boxes, objects)):
            self._check_rows(rows, describe(self, bottom, index))
        if self.param.proposal_target_param.append_gtbox:
            boxes = np.concatenate([boxes, objects[:, :5]])
        sample = self._choose(boxes, objects)
        self._shape_tops(len(sample.label), top)
        for blob, value in zip(top, self._results(sample, objects)):
            blob.data[:, :, 0, 0] = value

    def _check_rows(self, rows: np.ndarray, where: str) -> None:
        images = self.param.proposal_target_param.num_img_per_batch
        wrong = ~np.isfinite(rows).all(axis=1) | (rows[:, 0] < 0) | (rows[:, 0] >= images)
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise self.error(
                f"needs finite corners and images from 0 to {images - 1} (num_img_per_batch), "
                f"found {rows[first].tolist()} in bottom {where}"
            )

    def _choose(self, boxes: np.ndarray, objects: np.ndarray) -> Sample:
        param = self.param.proposal_target_param
        match, overlap = self._match(boxes, objects)
        has_object = overlap >= param.fg_thr
        label = np.where(has_object, np.append(objects[:, 5], 0)[match], 0).astype(np.int64)
        self._check_labels(label[has_object])
        counts = has_object & (np.append(objects[:, 6], 0)[match] == 0)
        near = ~has_object & (overlap >= param.bg_thr_lw) & (overlap < param.bg_thr_hg)
        front, back = np.flatnonzero(counts), np.flatnonzero(near)
        others = np.flatnonzero(~has_object & ~near)
        size = len(front) + len(back) if param.batch_size == -1 else param.batch_size
        if param.batch_size != -1:
            front = self._some(front, int(param.fg_fraction * size + 0.5))
        room = size - len(front)
        if len(back) > room:
            back = self._some(back, room)
        elif param.pickup_discard:
            back = np.append(back, others[: room - len(back)])
        if not len(front) + len(back):
            box = self._made_up(objects)
            return Sample(box, np.array([-1]), np.zeros(1), np.zeros(1, np.int64))
        chosen = np.append(front, back)
        return Sample(boxes[chosen], match[chosen], overlap[chosen], label[chosen])

    def _match(self, boxes: np.ndarray, objects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each box the object of its image with the largest overlap, and the overlap."""
        if not len(objects):
            return np.full(len(boxes), -1), np.zeros(len(boxes), boxes.dtype)
        overlap = overlaps(boxes[:, None, 1:], objects[None, :, 1:5])
        overlap[boxes[:, :1] != objects[None, :, 0]] = -1
        match, largest = overlap.argmax(axis=1), overlap.max(axis=1)
        return np.where(largest < 0, -1, match), np.maximum(largest, 0)

    def _check_labels(self, label: np.ndarray) -> None:
        classes = self.param.proposal_target_param.cls_num if self._aware else np.inf
        wrong = label[(label < 1) | (label >= classes)]
        if wrong.size:
            limit = f"1 to {classes - 1}" if self._aware else "1 or more"
            raise self.error(f"label {wrong[0]} of an object is no class ({limit})")

    def _some(self, indices: np.ndarray, most: int) -> np.ndarray:
        """Return ``most`` random indices, or all in their order if there are not more."""
        return indices if len(indices) <= most else self.random.permutation(indices)[:most]

    def _made_up(self, objects: np.ndarray) -> np.ndarray:
        """Return a random box (1, 5) that overlaps no object by fg_thr."""
        param, draw = self.param.proposal_target_param, self.random.integers
        if min(param.img_width, param.img_height) <= LEAST:
            raise self.error(
                f"found no box to train with, and needs img_width and img_height above {LEAST} to "
                f"make one up, found {param.img_width} and {param.img_height}"
            )
        for _ in range(TRIES):
            x, y = draw(param.img_width - LEAST), draw(param.img_height - LEAST)
            width = max(LEAST, int(draw(param.img_width - x)))
            height = max(LEAST, int(draw(param.img_height - y)))
            corners = [draw(param.num_img_per_batch), x, y, x + width - 1, y + height - 1]
            box = np.array([corners], objects.dtype)
            if self._match(box, objects)[1][0] < param.fg_thr:
                return box
        raise self.error("found no box to train with, and no room for one besides the objects")

    def _results(self, sample: Sample, objects: np.ndarray) -> list[np.ndarray]:
        """Return the tops' values, each (K, columns)."""
        param, rows = self.param.proposal_target_param, np.flatnonzero(sample.label)
        matched = np.zeros((len(sample.label), 6), objects.dtype)
        own = objects[sample.match[rows]]
        matched[rows, 0], matched[rows, 1:5] = sample.label[rows], own[:, 1:5]
        matched[rows, 5] = sample.overlap[rows]
        moves = (encoded(sample.boxes[rows, 1:], own[:, 1:5]) - self._mean) / self._std
        classes = param.cls_num if self._aware else 2
        place = sample.label[rows] if self._aware else 1
        targets = np.zeros((len(sample.label), classes, 4), objects.dtype)
        weights = np.zeros_like(targets)
        targets[rows, place] = moves
        counts = (matched[rows, 5] >= param.bbox_thr_lw) & (matched[rows, 5] <= param.bbox_thr_hg)
        weights[rows, place] = counts[:, None]
        targets, weights = targets.reshape(len(targets), -1), weights.reshape(len(targets), -1)
        label = sample.label[:, None]
        return [sample.boxes, label, targets, weights, weights, matched, self._weights(matched)]

    def _weights(self, matched: np.ndarray) -> np.ndarray:
        param, positive = self.param.proposal_target_param, matched[:, 0] > 0
        weights = np.ones(len(matched), matched.dtype)
        if param.iou_weighted:
            weights[positive] = matched[positive, 5]
        if positive.any():
            for chosen, share in (
                (positive, param.fg_fraction),
                (~positive, 1 - param.fg_fraction),
            ):
                if chosen.any():
                    weights[chosen] *= share * len(weights) / weights[chosen].sum()
        return weights[:, None]
