"""Detections of many boxes and classes: their choice by scores and overlaps, and their evaluation.

Scores are compared in single precision and overlaps in the boxes' type, as in weiliu89/caffe.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.boxes import best_scores, box_at, decode_box, overlap, suppress
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

PRIORS_PER_BLOCK = 1 << 10


@jit
def _candidates(begin, end, scores, threshold, background, found, counts):
    blocks, classes = counts.shape[1], scores.shape[2]
    for unit in range(begin, end):
        n, block = divmod(unit, blocks)
        first = block * PRIORS_PER_BLOCK
        own = counts[n, block]
        for p in range(first, min(first + PRIORS_PER_BLOCK, scores.shape[1])):
            # Not a number counts as a candidate, and is found out there.  Most priors have no
            # candidates; that is seen without branches.
            row, candidates = scores[n, p], 0
            for c in range(classes):
                candidates += not row[c] <= threshold
            if 0 <= background < classes:
                candidates -= not row[background] <= threshold
            for c in range(classes if candidates else 0):
                if not row[c] <= threshold and c != background:
                    found[n, c, first + own[c]] = p
                    own[c] += 1


@jit
def _decoded(predictions, boxes, variances, n, c, p, code, in_target):
    """Return the box of image n, class c and prior p; one prediction may be for all classes."""
    numbers = box_at(predictions[n, p], c if predictions.shape[2] > 1 else 0)
    prior = box_at(boxes[n if boxes.shape[0] > 1 else 0], p)
    return decode_box(prior, box_at(variances, p), numbers, code, in_target)


@jit
def _choose(
    begin,
    end,
    counts,
    scores,
    predictions,
    priors,
    variances,
    code,
    in_target,
    top_k,
    limits,
    found,
    kept,
):
    """Replace the candidates of an image and class by those that stay, the best first.

    ``kept`` becomes their number, or -1 - p if score or box of prior p are not numbers.
    """
    classes = scores.shape[2]
    for unit in range(begin, end):
        n, c = divmod(unit, classes)
        places, total = found[n, c], 0
        for block in range(counts.shape[1]):
            first = block * PRIORS_PER_BLOCK
            for k in range(counts[n, block, c]):
                places[total] = places[first + k]
                total += 1
        own = np.empty(total, np.float32)
        kept[n, c] = 0
        for k in range(total):
            own[k] = scores[n, places[k], c]
            if own[k] != own[k]:
                kept[n, c] = -1 - places[k]
        best = best_scores(own, top_k)
        boxes = np.empty((best.size, 4), predictions.dtype)
        for k in range(best.size):
            best[k] = p = places[best[k]]
            box = _decoded(predictions, priors, variances, n, c, p, code, in_target)
            boxes[k, 0], boxes[k, 1], boxes[k, 2], boxes[k, 3] = box
            if box[0] + box[1] != box[0] + box[1] or box[2] + box[3] != box[2] + box[3]:
                kept[n, c] = -1 - p
        if kept[n, c] == 0:
            order, stay = np.arange(best.size), np.empty(best.size, np.int64)
            kept[n, c] = suppress(boxes, order, limits[0], limits[1], -np.inf, stay)
            for k in range(kept[n, c]):
                places[k] = best[stay[k]]


@jit
def _cut(begin, end, scores, most, found, kept):
    """Leave the ``most`` best detections of each image, of equal ones those of the first class."""
    for n in range(begin, end):
        total = kept[n].sum()
        if total <= most:
            continue
        own, k = np.empty(total, np.float32), 0
        for c in range(kept.shape[1]):
            for i in range(kept[n, c]):
                own[k] = scores[n, found[n, c, i], c]
                k += 1
        stays = np.zeros(total, np.bool_)
        for place in best_scores(own, most):
            stays[place] = True
        k = 0
        for c in range(kept.shape[1]):
            before, kept[n, c] = kept[n, c], 0
            for i in range(before):
                if stays[k]:
                    found[n, c, kept[n, c]] = found[n, c, i]
                    kept[n, c] += 1
                k += 1


@jit
def _rows(
    begin,
    end,
    scores,
    predictions,
    priors,
    variances,
    code,
    in_target,
    found,
    kept,
    firsts,
    rows,
):
    for n in range(begin, end):
        r = firsts[n]
        for c in range(kept.shape[1]):
            for i in range(kept[n, c]):
                p = found[n, c, i]
                rows[r, 0], rows[r, 1], rows[r, 2] = n, c, scores[n, p, c]
                box = _decoded(predictions, priors, variances, n, c, p, code, in_target)
                rows[r, 3], rows[r, 4], rows[r, 5], rows[r, 6] = box
                r += 1


@dataclass(frozen=True)
class Choice:
    """Which boxes are detections: those that non-maximum suppression leaves of the best.

    Per image and class, except ``background``, the ``top_k`` best of the scores above
    ``least_score`` (-1: all); of those the ones that overlap no better one by more than
    ``overlap``, which each kept box multiplies by ``eta`` while it is above 0.5; of these the
    ``most`` best of each image (-1: all).
    """

    background: int
    least_score: float
    top_k: int
    overlap: float
    eta: float
    most: int


class NotANumber(Exception):
    """The score or box of an image, class and prior, its ``place``, is not a number."""

    def __init__(self, *place: int):
        self.place = place


@kernel
def detections(
    scores: np.ndarray,
    predictions: np.ndarray,
    priors: np.ndarray,
    variances: np.ndarray,
    code: int,
    in_target: bool,
    choice: Choice,
) -> np.ndarray:
    """Return the detections (K, 7) as image, class, score, x1, y1, x2, y2.

    In the order of images and classes, then by falling scores.  ``scores`` is (N, P, classes),
    ``predictions`` (N, P, 1 or classes, 4), ``priors`` boxes (N or 1, P, 4), and ``variances``
    (P, 4); ``code`` and ``in_target`` are those of `decode_box`.  Raises NotANumber.
    """
    images, number, classes = scores.shape
    blocks = -(-number // PRIORS_PER_BLOCK)
    found = np.empty((images, classes, number), np.int32)
    counts = np.zeros((images, blocks, classes), np.int32)
    kept = np.zeros((images, classes), np.int64)
    edges = choice.least_score, choice.background
    parallel_for(_candidates, images * blocks, scores, *edges, found, counts)
    meaning = scores, predictions, priors, variances, code, in_target
    limits = choice.overlap, choice.eta
    parallel_for(_choose, images * classes, counts, *meaning, choice.top_k, limits, found, kept)
    if kept.min(initial=0) < 0:
        n, c = np.argwhere(kept < 0)[0].tolist()
        raise NotANumber(n, c, -1 - int(kept[n, c]))
    if choice.most >= 0:
        parallel_for(_cut, images, scores, choice.most, found, kept)
    ends = kept.sum(axis=1).cumsum()
    rows = np.empty((int(ends[-1]) if images else 0, 7), predictions.dtype)
    firsts = ends - kept.sum(axis=1)
    parallel_for(_rows, images, *meaning, found, kept, firsts, rows)
    return rows


# What `verdicts` says of a detection.
NOT_DECIDED, RIGHT, WRONG = 0, 1, 2


@jit
def _decide(
    begin, end, found, boxes, difficult, found_ends, box_ends, least, difficult_too, decided
):
    for group in range(begin, end):
        first_box = box_ends[group - 1] if group else 0
        taken = np.zeros(box_ends[group] - first_box, np.bool_)
        for d in range(found_ends[group - 1] if group else 0, found_ends[group]):
            nearest, largest = -1, -np.inf
            for k in range(taken.size):
                share = overlap(box_at(found, d), box_at(boxes, first_box + k))
                if share > largest:
                    nearest, largest = k, share
            if nearest < 0 or not largest >= least:
                decided[d] = WRONG
            elif difficult[first_box + nearest] and not difficult_too:
                decided[d] = NOT_DECIDED
            else:
                decided[d] = WRONG if taken[nearest] else RIGHT
                taken[nearest] = True


@kernel
def verdicts(
    found: np.ndarray, boxes: np.ndarray, least: float, difficult_too: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of detections, and for each in this order RIGHT, WRONG or NOT_DECIDED.

    ``found`` is (D, 7): image, class, score, corners; ``boxes`` (G, 8): image, class, instance,
    corners, difficult.  The order is by image, class and falling score; where an image has no box
    of a class, its detections keep their order.  A detection is right if the box of its image and
    class that overlaps most does so by at least ``least`` and is not taken; without
    ``difficult_too`` nothing is decided about one at a difficult box.
    """
    with np.errstate(invalid="ignore"):
        rows = np.concatenate([found[:, :2], boxes[:, :2]]).astype(np.int64)
    span = 1 + np.ptp(rows[:, 1]) if len(rows) else 1
    groups, group = np.unique(rows[:, 0] * span + rows[:, 1], return_inverse=True)
    of_found, of_box = np.split(group, [len(found)])
    sizes = np.bincount(of_box, minlength=len(groups))
    ranked = np.where(sizes[of_found] > 0, -found[:, 2], 0)
    order, box_order = np.lexsort((ranked, of_found)), np.argsort(of_box, kind="stable")
    corners = found[order, 3:7], boxes[box_order, 3:7]
    difficult = boxes[box_order, 7] != 0
    ends = np.bincount(of_found, minlength=len(groups)).cumsum(), sizes.cumsum()
    decided = np.empty(len(found), np.int8)
    parallel_for(_decide, len(groups), *corners, difficult, *ends, least, difficult_too, decided)
    return order, decided
