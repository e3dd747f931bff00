"""DetectionLoss and DetectionGroupLoss: losses of maps with classes and moves in every cell."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import Arity, register
from pycaffe_dist.layers.box_regression import mean_and_std
from pycaffe_dist.layers.checking import require_no_gradient
from pycaffe_dist.layers.field_maps import FieldLabels, bounds, check_maps, encoded_fields
from pycaffe_dist.layers.loss import Loss

# Sides of objects are at least this many pixels long.
_BLOCKS = 2


class Sample(NamedTuple):
    """Which cells count, (N, fields, cells), and the weight of each in the loss of classes."""

    counts: np.ndarray
    weight: np.ndarray


class _FieldLoss(Loss):
    """The base of both; a subclass tells the arrays and chooses cells."""

    host_only = True
    averages_samples = False
    smooth = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._moments = mean_and_std(self)
        self.random = self.rng("samples")
        self._gradients: tuple[np.ndarray, np.ndarray] | None = None

    def split(self, bottom: list[Blob]) -> tuple[np.ndarray, np.ndarray]:
        """Return scores (M, classes, cells) and moves (M, 4, cells)."""
        raise NotImplementedError

    def labels(self, bottom: list[Blob]) -> FieldLabels:
        """Return the labels of all cells."""
        raise NotImplementedError

    def choose(self, scores: np.ndarray, prob: np.ndarray, labels: FieldLabels) -> Sample:
        """Return the cells that count."""
        raise NotImplementedError

    @property
    def limits(self) -> tuple[float, float] | None:
        """field_whr and field_xyr, if moves have limits."""
        raise NotImplementedError

    @property
    def trade(self) -> float:
        """The weight of the loss of moves."""
        raise NotImplementedError

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        scores, moves = self.split(bottom)
        labels = self.labels(bottom)
        exp = np.exp(scores - scores.max(axis=1, keepdims=True))
        prob = exp / exp.sum(axis=1, keepdims=True)
        sample = self.choose(scores, prob, labels)
        counts = sample.counts & ~labels.ignored
        of_classes, d_scores = self._of_classes(prob, labels.label, sample.weight, counts)
        of_moves, d_moves = self._of_moves(moves, labels, counts & (labels.label > 0))
        top[0].data[...] = of_classes + self.trade * of_moves, self.trade * of_moves
        self._gradients = d_scores, d_moves * moves.dtype.type(self.trade)

    def _of_classes(
        self, prob: np.ndarray, label: np.ndarray, weight: np.ndarray, counts: np.ndarray
    ) -> tuple[float, np.ndarray]:
        total = max(1, int(counts.sum()))
        index = np.where(counts, label, 0)[:, None]
        factor = np.where(counts, weight, 0).astype(prob.dtype) / prob.dtype.type(total)
        own = np.take_along_axis(prob, index, axis=1)
        least = np.finfo(np.float32).tiny
        loss = -(np.log(np.maximum(own, least)) * factor[:, None]).sum()
        gradient = prob.copy()
        np.put_along_axis(gradient, index, own - 1, axis=1)
        return float(loss), gradient * factor[:, None]

    def _of_moves(
        self, moves: np.ndarray, labels: FieldLabels, counts: np.ndarray
    ) -> tuple[float, np.ndarray]:
        total = moves.dtype.type(max(1, 4 * int(counts.sum())))
        if self.limits is not None:
            least, most = bounds(*self.limits, *self._moments)
            moves = np.clip(moves, least, most)
        difference = moves - encoded_fields(labels, *self._moments, _BLOCKS)
        difference = np.where(counts[:, None], difference, 0)
        if not self.smooth:
            return float((difference**2).sum() / 2 / total), difference / total
        size = np.abs(difference)
        loss = np.where(size < 1, difference**2 / 2, size - 0.5).sum()
        return float(loss / total), np.clip(difference, -1, 1) / total

    def weight_of(self, top: list[Blob]) -> float:
        """Return the weight of the first value: the second is a part of it."""
        return float(top[0].read_diff().reshape(-1)[0])

    def some(self, cells: np.ndarray, most: int) -> np.ndarray:
        """Return ``most`` random cells, or all in their order if there are not more."""
        return cells if len(cells) <= most else self.random.permutation(cells)[:most]


def balanced(
    weight: np.ndarray, counts: np.ndarray, positive: np.ndarray, multiple: int
) -> np.ndarray:
    """Return weights such that negatives have ``multiple`` times the weight of positives.

    Their sum is the number of cells that count.  Without positives nothing changes.
    """
    positive = positive & counts
    if not positive.any():
        return weight
    weight, share = weight.copy(), 1 / (1 + multiple)
    for chosen, part in ((positive, share), (counts & ~positive, 1 - share)):
        total = weight[chosen].sum()
        if total:
            weight[chosen] *= part * counts.sum() / total
    return weight


@register("DetectionLoss")
class DetectionLoss(_FieldLoss):
    """Cross entropy of classes plus ``lambda`` times smooth L1 of moves (zhaoweicai/mscnn).

    Bottoms: maps (N, cls_num + 4, H, W) and labels (N, 6, H, W): class, centre's x and y, width,
    height and overlap of the object that belongs to a cell's field.  All objects count, and of the
    background, with an overlap below bg_threshold, bg_multiple times as many cells: ``random`` ones
    (drawn with replacement), those with the largest scores of each class (``bootstrap``), half and
    half (``mixture``), or with any other sample_mode all.  The top is (1, 1, 1, 2): the loss, and
    the part of it that moves have.  As in the fork, moves beyond their limits (field_whr,
    field_xyr) get a gradient all the same, and the part in the second value is displayed twice, but
    has no gradient of its own.
    """

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.detection_loss_param
        if param.cls_num < 2 or param.coord_num != 4 or not param.downsample_rate:
            raise self.error("needs cls_num of at least 2, coord_num 4 and a downsample_rate")
        if not param.field_w or not param.field_h:
            raise self.error("needs field_w and field_h above 0")
        self.smooth = param.bb_smooth
        super().setup(bottom, top)

    @property
    def limits(self) -> tuple[float, float] | None:
        """field_whr and field_xyr."""
        param = self.param.detection_loss_param
        return param.field_whr, param.field_xyr

    @property
    def trade(self) -> float:
        """lambda."""
        return float(getattr(self.param.detection_loss_param, "lambda"))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.detection_loss_param
        check_maps(self, bottom, [param.cls_num + 4, 6])
        if param.objectness and param.cls_num != 2:
            raise self.error(f"needs cls_num 2 with objectness, found {param.cls_num}")
        top[0].reshape(1, 1, 1, 2)

    def split(self, bottom: list[Blob]) -> tuple[np.ndarray, np.ndarray]:
        """Both parts of the maps."""
        x = bottom[0].data.reshape(*bottom[0].shape[:2], bottom[0].count_of(2))
        return x[:, :-4], x[:, -4:]

    def labels(self, bottom: list[Blob]) -> FieldLabels:
        """The labels of one field."""
        param = self.param.detection_loss_param
        fields = np.array([[param.field_w, param.field_h]])
        return FieldLabels(self, bottom, 1, fields, param.downsample_rate, param)

    def choose(self, scores: np.ndarray, prob: np.ndarray, labels: FieldLabels) -> Sample:
        """All objects, and some of the background."""
        param, positive = self.param.detection_loss_param, labels.label > 0
        counts = positive.copy()
        free = (labels.label == 0) & (labels.overlap < param.bg_threshold)
        for image, own in enumerate(free):
            kept = self._background(scores[image], own, labels.label[image])
            counts[image, kept] = True
        weight = np.ones(positive.shape)
        if param.iou_weighted:
            weight[positive] = labels.overlap[positive]
        if param.pos_neg_weighted:
            weight = balanced(weight, counts, positive, param.bg_multiple)
        return Sample(counts, weight)

    def _background(self, scores: np.ndarray, free: np.ndarray, label: np.ndarray) -> np.ndarray:
        """Return the numbers of the background's cells that count in one image."""
        param = self.param.detection_loss_param
        cells = np.flatnonzero(free)
        share = 0.5 if param.sample_mode == "mixture" else 1.0
        if param.sample_mode not in ("random", "bootstrap", "mixture"):
            return cells
        chosen = []
        if param.sample_mode != "bootstrap":
            draws = int((label > 0).sum() * param.bg_multiple * share)
            drawn = self.random.integers(len(free), size=max(draws, 4 * (len(scores) - 1)))
            chosen.append(drawn[free[drawn]])
        if param.sample_mode != "random":
            for kind in range(1, len(scores)):
                most = max(4, int((label == kind).sum() * param.bg_multiple * share))
                chosen.append(cells[np.argsort(-scores[kind, cells], kind="stable")[:most]])
        return np.unique(np.concatenate(chosen))

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 1)
        if propagate_down[0] and self._gradients is not None:
            joined = np.concatenate(self._gradients, axis=1)
            bottom[0].diff[...] = joined.reshape(bottom[0].shape) * self.weight_of(top)


@register("DetectionGroupLoss")
class DetectionGroupLoss(_FieldLoss):
    """Cross entropy of classes plus ``lambda`` times a loss of moves (zhaoweicai/cascade-rcnn).

    Bottoms: scores (N·fields, cls_num, H, W), moves (N·fields, 4, H, W) and labels (N·fields, 6, H,
    W) as in DetectionLoss; the fields are field_w and field_h.  In each image batch_size cells
    count, of which one of 1 + bg_multiple is an object if there are enough; with batch_size -1 all
    objects and bg_multiple times as many of the background, but at least min_num_neg.  The
    background's are chosen at ``random``, by rank (``bootstrap``: the largest loss, or probability
    of an object with neg_ranking_type conf_prob) or half and half (``mixture``).  The top is
    (1, 1, 1, 2) as in DetectionLoss, and so is the gradient of moves beyond their limits, which
    there are only if field_whr and field_xyr are given; the fork also writes the limited moves to
    its bottom.
    """

    bottoms = Arity(3, 3)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.detection_group_loss_param
        if param.cls_num < 2 or not param.stride or not param.field_w:
            raise self.error("needs cls_num of at least 2, a stride, field_w and field_h")
        if len(param.field_w) != len(param.field_h):
            raise self.error("needs field_w and field_h equally often")
        if param.batch_size < 1 and param.batch_size != -1:
            raise self.error(f"needs batch_size above 0, or -1; found {param.batch_size}")
        for name, known in (
            ("bbox_loss_type", ("Smooth_L1", "Euclidean_L2")),
            ("neg_mining_type", ("random", "bootstrap", "mixture")),
            ("neg_ranking_type", ("conf_loss", "conf_prob")),
        ):
            if getattr(param, name) not in known:
                raise self.error(f"needs {name} {' or '.join(known)}, found {getattr(param, name)}")
        self.smooth = param.bbox_loss_type == "Smooth_L1"
        super().setup(bottom, top)

    @property
    def limits(self) -> tuple[float, float] | None:
        """field_whr and field_xyr, if both are given."""
        param = self.param.detection_group_loss_param
        given = param.HasField("field_whr") and param.HasField("field_xyr")
        return (param.field_whr, param.field_xyr) if given else None

    @property
    def trade(self) -> float:
        """lambda."""
        return float(getattr(self.param.detection_group_loss_param, "lambda"))

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Scores and moves have gradients."""
        return bottom_index < 2

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.detection_group_loss_param
        check_maps(self, bottom, [param.cls_num, 4, 6], len(param.field_w))
        if param.objectness and param.cls_num != 2:
            raise self.error(f"needs cls_num 2 with objectness, found {param.cls_num}")
        top[0].reshape(1, 1, 1, 2)

    def split(self, bottom: list[Blob]) -> tuple[np.ndarray, np.ndarray]:
        """The first two bottoms."""
        scores, moves = (b.data.reshape(*b.shape[:2], b.count_of(2)) for b in bottom[:2])
        return scores, moves

    def labels(self, bottom: list[Blob]) -> FieldLabels:
        """The labels of all fields."""
        param = self.param.detection_group_loss_param
        fields = np.column_stack([param.field_w, param.field_h])
        return FieldLabels(self, bottom, 2, fields, param.stride, param)

    def choose(self, scores: np.ndarray, prob: np.ndarray, labels: FieldLabels) -> Sample:
        """Objects and background, image by image."""
        param = self.param.detection_group_loss_param
        positive = labels.label > 0
        free = (labels.label == 0) & (labels.overlap < param.bg_threshold)
        index = np.maximum(labels.label, 0)[:, None]
        rank = 1 - prob[:, 0]
        if param.neg_ranking_type == "conf_loss":
            rank = -np.log(np.maximum(np.take_along_axis(prob, index, axis=1)[:, 0], 1e-37))
        counts = np.zeros_like(positive)
        images = len(positive) // len(param.field_w)
        cells = len(param.field_w) * positive.shape[1]
        arrays = (each.reshape(images, cells) for each in (counts, positive, free, rank))
        for own, objects, others, order in zip(*arrays):
            found, back = np.flatnonzero(objects), np.flatnonzero(others)
            if param.batch_size == -1:
                size = max(len(found) * param.bg_multiple, param.min_num_neg)
            else:
                # As in C, halves are rounded up.
                most = int(param.batch_size / (1 + param.bg_multiple) + 0.5)
                found = self.some(found, most)
                size = param.batch_size - len(found)
            own[found] = own[self._background(back, order, size)] = True
        weight = np.ones(positive.shape)
        if param.pos_neg_weighted:
            weight = balanced(weight, counts, positive, param.bg_multiple)
        return Sample(counts, weight)

    def _background(self, cells: np.ndarray, rank: np.ndarray, size: int) -> np.ndarray:
        """Return ``size`` of the background's cells."""
        kind = self.param.detection_group_loss_param.neg_mining_type
        if len(cells) <= size or kind == "random":
            return self.some(cells, size)
        ordered = cells[np.argsort(-rank[cells], kind="stable")]
        hard = size if kind == "bootstrap" else int(size * 0.5 + 0.5)
        return np.append(ordered[:hard], self.some(ordered[hard:], size - hard))

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 2)
        if self._gradients is None:
            return
        for blob, gradient, wanted in zip(bottom, self._gradients, propagate_down):
            if wanted:
                blob.diff[...] = gradient.reshape(blob.shape) * self.weight_of(top)
