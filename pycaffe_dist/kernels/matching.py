"""Which prior box predicts which labelled box, and which priors count in a loss.

A match is the row of a labelled box, or `UNMATCHED`, or `OUTSIDE` for a box that crosses the
image's border and must not.  Arrays are (images N, classes L, priors P): L is 1, unless every class
matches its own boxes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.boxes import best_scores, box_at, crosses_border, overlap, suppress
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.labels import NOTHING_WRONG
from pycaffe_dist.threads import parallel_for

UNMATCHED, OUTSIDE = -1, -2
# Smaller overlaps do not count.
LEAST_OVERLAP = 1e-6
# Suppression drops boxes with a smaller area.
LEAST_AREA = 1e-5
# The columns of a labelled box.
IMAGE, CLASS, CORNERS, DIFFICULT = 0, 1, 3, 7


@dataclass(frozen=True)
class Reading:
    """How rows of labels are read.

    There are ``images`` and ``classes``; no row may be of class ``background``.  ``agnostic`` makes
    all rows class background + 1; without ``difficult`` difficult rows are left out.
    """

    images: int
    classes: int
    background: int
    agnostic: bool
    difficult: bool


@dataclass(frozen=True)
class Matching:
    """How boxes are matched.

    ``per_class``: the boxes of a class match labels of that class only.  With ``per_prediction`` a
    box that no label chose takes the label it overlaps most, if by ``threshold`` at least.
    ``inside`` leaves out boxes that cross the image's border.
    """

    per_class: bool
    per_prediction: bool
    threshold: float
    inside: bool


@dataclass(frozen=True)
class Mining:
    """How priors are chosen by their losses.

    With ``hard`` any ``sample`` priors of an image, else ``ratio`` unmatched ones for each match,
    whose overlap is below ``overlap``.  If ``suppression`` is positive, it is the threshold of a
    non-maximum suppression before, of the ``top_k`` largest losses (-1: all).
    """

    hard: bool
    sample: int
    ratio: float
    overlap: float
    suppression: float
    top_k: int


@jit
def _wrong_column(row, images, classes, background, agnostic):
    """Return the first column of a label that is wrong, or -1."""
    # A NaN is in no range.
    if not (row[IMAGE] > -2 and row[IMAGE] < images):
        return IMAGE
    if int(row[IMAGE]) == -1:
        return -1
    if not (row[CLASS] > -1 and row[CLASS] < (2**31 if agnostic else classes)):
        return CLASS
    if int(row[CLASS]) == background:
        return CLASS
    for k in range(CORNERS, CORNERS + 4):
        if not np.isfinite(row[k]):
            return k
    return -1


@jit
def _code(position, value):
    bits = np.array([np.float32(value)]).view(np.uint32)[0]
    return np.uint64(position) << np.uint64(32) | np.uint64(bits)


@jit
def _read(begin, end, label, images, classes, background, agnostic, difficult, owner, kind, wrong):
    wrong[0] = NOTHING_WRONG
    for r in range(label.shape[0]):
        owner[r] = kind[r] = -1
        row = label[r]
        column = _wrong_column(row, images, classes, background, agnostic)
        if column >= 0:
            wrong[0] = min(wrong[0], _code(r * label.shape[1] + column, row[column]))
        elif int(row[IMAGE]) >= 0 and (difficult or int(row[DIFFICULT]) == 0):
            owner[r] = int(row[IMAGE])
            kind[r] = background + 1 if agnostic else int(row[CLASS])


@kernel
def read_labels(
    label: np.ndarray, reading: Reading, owner: np.ndarray, kind: np.ndarray, wrong: np.ndarray
) -> None:
    """Set owner and kind (rows, int32) to image and class of each label that counts, else to -1.

    ``label`` is (rows, 8): image, class, instance, xmin, ymin, xmax, ymax, difficult; image -1
    marks an empty row.  ``wrong`` (see `kernels.labels`) gets the first wrong value: an image or
    class that does not exist, the background, or a corner that is not finite.
    """
    wrong[0] = NOTHING_WRONG
    options = reading.images, reading.classes, reading.background, reading.agnostic
    parallel_for(_read, 1, label, *options, reading.difficult, owner, kind, wrong)


@jit
def _check_priors(begin, end, priors, sized, wrong):
    for p in range(priors.shape[1]):
        for k in range(4):
            corner, variance = priors[0, p, k], priors[1, p, k]
            fits = np.isfinite(corner) and (not sized or k < 2 or corner > priors[0, p, k - 2])
            if not fits:
                wrong[0] = min(wrong[0], _code(p * 4 + k, corner))
            if not (np.isfinite(variance) and variance > 0):
                wrong[0] = min(wrong[0], _code((priors.shape[1] + p) * 4 + k, variance))


@kernel
def check_priors(priors: np.ndarray, sized: bool, wrong: np.ndarray) -> None:
    """Set ``wrong`` to the first wrong value of priors (2, P, 4): boxes, and their variances.

    Corners must be finite, variances positive, and boxes not empty if ``sized``.
    """
    wrong[0] = NOTHING_WRONG
    parallel_for(_check_priors, 1, priors, sized, wrong)


@jit
def _free_overlaps(boxes, box, match, values):
    """Set values to the overlaps of the unmatched boxes, small ones and the others' to 0."""
    for p in range(values.size):
        value = overlap(box_at(boxes, p), box)
        counts = (match[p] == UNMATCHED) & (value > LEAST_OVERLAP)
        values[p] = value if counts else values.dtype.type(0)


@jit
def _first_largest(values):
    best = 0
    for p in range(1, values.size):
        if values[p] > values[best]:
            best = p
    return best


@jit
def _rows_of(owner, kind, image, per_class, own_class):
    """Return the labels of an image, with ``per_class`` those of one class."""
    rows, count = np.empty(owner.size, np.int64), 0
    for r in range(owner.size):
        if owner[r] == image and (kind[r] == own_class or not per_class):
            rows[count] = r
            count += 1
    return rows[:count]


@jit
def _match_pairs(boxes, corners, own, match, overlaps, nearest):
    """Match the best pair of a free box and a free label again and again.

    Also sets each box's largest overlap and the label that it is with.
    """
    values = np.empty(match.size, overlaps.dtype)
    best, largest = np.empty(own.size, np.int64), np.empty(own.size, overlaps.dtype)
    for k in range(own.size):
        _free_overlaps(boxes, box_at(corners, own[k]), match, values)
        for p in range(values.size):
            closer = values[p] > overlaps[p]
            overlaps[p] = values[p] if closer else overlaps[p]
            nearest[p] = own[k] if closer else nearest[p]
        best[k] = _first_largest(values)
        largest[k] = values[best[k]]
    for _ in range(own.size):
        # Of equal pairs with different boxes the order does not matter.
        k = _first_largest(largest)
        if not largest[k] > 0:
            break
        taken = best[k]
        match[taken] = own[k]
        largest[k] = 0
        for other in range(own.size):
            if largest[other] > 0 and best[other] == taken:
                _free_overlaps(boxes, box_at(corners, own[other]), match, values)
                best[other] = _first_largest(values)
                largest[other] = values[best[other]]


@jit
def _match(
    begin,
    end,
    boxes,
    label,
    owner,
    kind,
    per_class,
    per_prediction,
    threshold,
    inside,
    matches,
    overlaps,
):
    classes, priors = matches.shape[1], matches.shape[2]
    nearest = np.empty(priors, np.int32)
    corners = label[:, CORNERS : CORNERS + 4]
    for place in range(begin, end):
        n, c = divmod(place, classes)
        candidates = boxes[n if boxes.shape[0] > 1 else 0, c]
        match, own_overlaps = matches[n, c], overlaps[n, c]
        for p in range(priors):
            beyond = inside and crosses_border(box_at(candidates, p))
            match[p] = OUTSIDE if beyond else UNMATCHED
            own_overlaps[p] = 0
        own = _rows_of(owner, kind, n, per_class, c)
        if own.size == 0:
            continue
        _match_pairs(candidates, corners, own, match, own_overlaps, nearest)
        for p in range(priors if per_prediction else 0):
            if match[p] == UNMATCHED and own_overlaps[p] > 0 and own_overlaps[p] >= threshold:
                match[p] = nearest[p]


@kernel
def match_boxes(
    boxes: np.ndarray,
    label: np.ndarray,
    owner: np.ndarray,
    kind: np.ndarray,
    matching: Matching,
    matches: np.ndarray,
    overlaps: np.ndarray,
) -> None:
    """Set matches (N, L, P), int32, and the largest overlap of each box with a label.

    ``boxes`` is (N or 1, L, P, 4); label, owner and kind are those of `read_labels`.  First the
    best pair of a free box and a free label is matched, again and again (bipartite matching).
    """
    how = matching.per_class, matching.per_prediction, matching.threshold, matching.inside
    places = matches.shape[0] * matches.shape[1]
    parallel_for(_match, places, boxes, label, owner, kind, *how, matches, overlaps)


@jit
def _eligible(match, overlaps, allowed, hard, most_overlap):
    """Return the priors that mining may choose, and the number of matches."""
    found, count, positives = np.empty(match.size, np.int64), 0, 0
    for p in range(match.size):
        positives += match[p] >= 0
        if allowed[p] and (hard or (match[p] == UNMATCHED and overlaps[p] < most_overlap)):
            found[count] = p
            count += 1
    return found[:count], positives


@jit
def _label_count(owner, image):
    count = 0
    for r in range(owner.size):
        count += owner[r] == image
    return count


@jit
def _mine(
    begin,
    end,
    boxes,
    owner,
    overlaps,
    allowed,
    hard,
    sample,
    ratio,
    most_overlap,
    suppression,
    top_k,
    matches,
    class_losses,
    location_losses,
    counted,
):
    priors = matches.shape[2]
    for n in range(begin, end):
        match, chosen = matches[n, 0], counted[n]
        chosen[:] = False
        if _label_count(owner, n) == 0:
            continue
        eligible, positives = _eligible(match, overlaps[n, 0], allowed[n], hard, most_overlap)
        number = min(sample if hard else int(np.float32(positives) * ratio), eligible.size)
        losses = np.empty(eligible.size, np.float32)
        for k in range(eligible.size):
            loss = class_losses[n, eligible[k]] + location_losses[n, eligible[k]]
            losses[k] = 0 if loss < 0 else loss
        best = eligible[best_scores(losses, top_k if suppression > 0 else number)]
        if suppression > 0:
            kept = np.empty(number, np.int64)
            candidates = boxes[n if boxes.shape[0] > 1 else 0, 0]
            best = kept[: suppress(candidates, best, suppression, 1.0, LEAST_AREA, kept)]
        chosen[best] = True
        for p in range(priors):
            if match[p] >= 0:
                if hard and not chosen[p]:
                    match[p], location_losses[n, p] = UNMATCHED, 0
                chosen[p] = match[p] >= 0
            elif match[p] == OUTSIDE:
                chosen[p] = False


@kernel
def mine(
    boxes: np.ndarray,
    owner: np.ndarray,
    overlaps: np.ndarray,
    allowed: np.ndarray,
    mining: Mining,
    matches: np.ndarray,
    class_losses: np.ndarray,
    location_losses: np.ndarray,
    counted: np.ndarray,
) -> None:
    """Set counted (N, P), bool: the matches, and unmatched priors with large losses.

    Only ``allowed`` priors (N, P), bool, are chosen.  The losses are (N, P).  Matches that
    ``mining.hard`` does not choose become `UNMATCHED`, and lose their location loss.  An image
    without labels counts nothing.  ``boxes`` is for the suppression.
    """
    how = mining.hard, mining.sample, np.float32(mining.ratio), mining.overlap
    limits = mining.suppression, mining.top_k
    losses = class_losses, location_losses
    arrays = boxes, owner, overlaps, allowed
    parallel_for(_mine, matches.shape[0], *arrays, *how, *limits, matches, *losses, counted)
