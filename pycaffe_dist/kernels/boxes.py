"""Boxes in an image: overlap, encoding against priors, and non-maximum suppression.

A box is (xmin, ymin, xmax, ymax), usually in units of the image's width and height; arrays of boxes
end with an axis of 4.  All arithmetic is in the boxes' own type, so that float32 boxes have the
same order and the same ties as in weiliu89/caffe.  The functions marked `jit` are parts of other
kernels' loops; in them a box is a tuple.
"""

from __future__ import annotations

import math

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import indices, jit
from pycaffe_dist.threads import parallel_for

Box = tuple[float, float, float, float]
# The numbers of PriorBoxParameter.CodeType: what a prediction says of its prior's box.
CORNER, CENTER_SIZE, CORNER_SIZE = 1, 2, 3
BOXES_PER_CHUNK = 1 << 10
_NEGATIVE = np.uint32(1 << 31)
_HALF = np.uint64(32)


@jit
def box_at(boxes: np.ndarray, i: int) -> Box:
    """Return row ``i`` of boxes (n, 4) as a tuple."""
    return boxes[i, 0], boxes[i, 1], boxes[i, 2], boxes[i, 3]


@jit
def area(box: Box) -> float:
    """Return the area of a box, 0 if an upper corner is below a lower one."""
    width, height = box[2] - box[0], box[3] - box[1]
    return width * height if (width >= 0) & (height >= 0) else type(width)(0)


@jit
def overlap(box: Box, other: Box) -> float:
    """Return the intersection over union of two boxes, 0 if they share no area."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    shared = width * height
    union = area(box) + area(other) - shared
    return shared / union if (width > 0) & (height > 0) else type(width)(0)


@jit
def crosses_border(box: Box) -> bool:
    """Tell whether a corner of a box lies outside of the unit square."""
    return min(box[0], box[1], box[2], box[3]) < 0 or max(box[0], box[1], box[2], box[3]) > 1


@jit
def _center_and_size(box, half):
    center = (box[0] + box[2]) * half, (box[1] + box[3]) * half
    return center[0], center[1], box[2] - box[0], box[3] - box[1]


@jit
def encode_box(prior: Box, variance: Box, box: Box, code: int, variance_in_target: bool) -> Box:
    """Return the four numbers that `decode_box` turns into ``box``.

    ``code`` is CORNER, CENTER_SIZE or CORNER_SIZE; the numbers are divided by the variances unless
    ``variance_in_target``.
    """
    number = type(prior[0])
    width, height = prior[2] - prior[0], prior[3] - prior[1]
    a, b = box[0] - prior[0], box[1] - prior[1]
    c, d = box[2] - prior[2], box[3] - prior[3]
    if code == CENTER_SIZE:
        x, y, _, _ = _center_and_size(prior, number(0.5))
        box_x, box_y, box_width, box_height = _center_and_size(box, number(0.5))
        a, b = (box_x - x) / width, (box_y - y) / height
        # The fork takes logarithms in double precision.
        wide_c = math.log(np.float64(box_width / width))
        wide_d = math.log(np.float64(box_height / height))
        if not variance_in_target:
            wide_c /= variance[2]
            wide_d /= variance[3]
            a, b = a / variance[0], b / variance[1]
        return a, b, number(wide_c), number(wide_d)
    if code == CORNER_SIZE:
        a, b, c, d = a / width, b / height, c / width, d / height
    if not variance_in_target:
        a, b, c, d = a / variance[0], b / variance[1], c / variance[2], d / variance[3]
    return a, b, c, d


@jit
def decode_box(prior: Box, variance: Box, numbers: Box, code: int, variance_in_target: bool) -> Box:
    """Return the box that four predicted numbers mean for a prior; see `encode_box`."""
    number = type(prior[0])
    a, b, c, d = numbers[0], numbers[1], numbers[2], numbers[3]
    if not variance_in_target:
        a, b, c, d = variance[0] * a, variance[1] * b, variance[2] * c, variance[3] * d
    width, height = prior[2] - prior[0], prior[3] - prior[1]
    if code == CENTER_SIZE:
        x, y, _, _ = _center_and_size(prior, number(0.5))
        x, y = a * width + x, b * height + y
        half_width = number(math.exp(np.float64(c)) * width) * number(0.5)
        half_height = number(math.exp(np.float64(d)) * height) * number(0.5)
        return x - half_width, y - half_height, x + half_width, y + half_height
    if code == CORNER_SIZE:
        a, b, c, d = a * width, b * height, c * width, d * height
    return prior[0] + a, prior[1] + b, prior[2] + c, prior[3] + d


@jit
def _keys(scores):
    """Return numbers (uint64), the smallest for the largest score, and of equals for the first."""
    values = np.empty_like(scores)
    for i in range(scores.size):
        # There is only one zero.
        values[i] = scores[i] + np.float32(0) if scores[i] == scores[i] else np.inf
    bits, keys = values.view(np.uint32), np.empty(scores.size, np.uint64)
    for i in range(scores.size):
        falling = bits[i] if bits[i] >= _NEGATIVE else ~(bits[i] | _NEGATIVE)
        keys[i] = np.uint64(falling) << _HALF | np.uint64(i)
    return keys


@jit
def _select(keys, count):
    """Move the ``count`` smallest keys, at least one, to the front; all keys differ."""
    low, high = 0, keys.size - 1
    while low < high:
        pivot = keys[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if count - 1 <= j:
            high = j
        elif count - 1 >= i:
            low = i
        else:
            return


@jit
def best_scores(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the ``count`` best scores (float32), the best first; -1 stands for all.

    Equal scores keep their order; NaN counts as infinity.
    """
    keys = _keys(scores)
    if 0 <= count < keys.size:
        if count:
            _select(keys, count)
        keys = keys[:count]
    keys.sort()
    places = np.empty(keys.size, np.int64)
    for i in range(keys.size):
        places[i] = np.int64(keys[i] & np.uint64(0xFFFFFFFF))
    return places


@jit
def _raise_overlaps(i, x1, y1, x2, y2, area, largest):
    """Raise ``largest``, a number of each box, to the overlap with box i for the boxes after it."""
    zero = area.dtype.type(0)
    left, top, right, bottom, own = x1[i], y1[i], x2[i], y2[i], area[i]
    for j in indices(i + 1, area.size):
        width = (right if right < x2[j] else x2[j]) - (left if left > x1[j] else x1[j])
        height = (bottom if bottom < y2[j] else y2[j]) - (top if top > y1[j] else y1[j])
        shared = (width if width > zero else zero) * (height if height > zero else zero)
        share = shared / (own + area[j] - shared)
        largest[j] = share if share > largest[j] else largest[j]


@jit
def suppress(
    boxes: np.ndarray,
    order: np.ndarray,
    threshold: float,
    eta: float,
    smallest: float,
    kept: np.ndarray,
) -> int:
    """Set the front of ``kept`` to the boxes that non-maximum suppression keeps; return how many.

    ``boxes`` is (n, 4); ``order`` has the indices of the candidates, the best first, cut to top_k
    by the caller; the search ends when ``kept`` is full.  A box stays if its overlap with every
    kept one is at most ``threshold``.  With ``eta`` below 1 each kept box multiplies the threshold
    by it while that is above 0.5.  Boxes with an area below ``smallest`` are dropped.
    """
    limit, factor = boxes.dtype.type(threshold), boxes.dtype.type(eta)
    # Rows of corners and of areas, so that several overlaps are computed at once.
    sides, areas = np.empty((4, order.size), boxes.dtype), np.empty(order.size, boxes.dtype)
    for i in range(order.size):
        box = box_at(boxes, order[i])
        sides[0, i], sides[1, i], sides[2, i], sides[3, i] = box
        areas[i] = area(box)
    largest, count = np.zeros(order.size, boxes.dtype), 0
    for i in range(order.size):
        if count == kept.size:
            break
        if largest[i] <= limit and not areas[i] < smallest:
            kept[count] = order[i]
            count += 1
            _raise_overlaps(i, sides[0], sides[1], sides[2], sides[3], areas, largest)
            if factor < 1 and limit > 0.5:
                limit *= factor
    return count


@jit
def _decode(begin, end, numbers, priors, variances, code, variance_in_target, boxes):
    classes = numbers.shape[2]
    for row in range(begin, end):
        n, p = divmod(row, priors.shape[0])
        prior, variance = box_at(priors, p), box_at(variances, p)
        for c in range(classes):
            own = box_at(numbers[n, p], c)
            box = decode_box(prior, variance, own, code, variance_in_target)
            for k in range(4):
                boxes[n, c, p, k] = box[k]


@kernel
def decode_boxes(
    numbers: np.ndarray,
    priors: np.ndarray,
    variances: np.ndarray,
    code: int,
    variance_in_target: bool,
    boxes: np.ndarray,
) -> None:
    """Set boxes (N, classes, P, 4) from predictions (N, P, classes, 4) and their priors (P, 4).

    ``code`` and ``variance_in_target`` are those of `decode_box`.
    """
    args = numbers, priors, variances, code, variance_in_target, boxes
    grain = max(1, BOXES_PER_CHUNK // max(1, numbers.shape[2]))
    parallel_for(_decode, numbers.shape[0] * priors.shape[0], *args, grain=grain)
