"""The losses of predicted boxes and of their classes, and their gradients.

Predictions are (images N, priors P, …); see `kernels.matching` for matches and labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.boxes import box_at, decode_box, encode_box
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.exponential import exponential
from pycaffe_dist.kernels.matching import CORNERS
from pycaffe_dist.kernels.softmax import softmax_row
from pycaffe_dist.threads import parallel_for

SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)
LARGE_PRODUCT = 1e300
PRIORS_PER_CHUNK = 1 << 8
ROWS_PER_TILE = 64


@dataclass(frozen=True)
class Location:
    """The loss of predicted boxes.

    ``code`` and ``variance_in_target`` are those of `boxes.encode_box`; ``squares`` takes half the
    square of each difference, else its smooth L1 loss.  ``inside`` leaves out coordinates where the
    prior, or with ``decoded`` the predicted box, is outside of the image.
    """

    code: int
    variance_in_target: bool
    squares: bool
    inside: bool
    decoded: bool

    def numbers(self) -> tuple:
        """Return all of it as arguments of a kernel."""
        return self.code, self.variance_in_target, self.squares, self.inside, self.decoded


@jit
def _difference(own, goal, variance, place, variance_in_target, inside):
    if inside and (place < 0 or place > 1):
        return type(own)(0)
    return own / variance - goal / variance if variance_in_target else own - goal


@jit
def _differences(own, prior, variance, box, code, variance_in_target, inside, decoded):
    """Return the four predicted numbers minus those of ``box``."""
    goal = encode_box(prior, variance, box, code, variance_in_target)
    place = prior
    if inside and decoded:
        place = decode_box(prior, variance, own, code, variance_in_target)
    how = variance_in_target, inside
    return (
        _difference(own[0], goal[0], variance[0], place[0], *how),
        _difference(own[1], goal[1], variance[1], place[1], *how),
        _difference(own[2], goal[2], variance[2], place[2], *how),
        _difference(own[3], goal[3], variance[3], place[3], *how),
    )


@jit
def _location_losses(
    begin,
    end,
    numbers,
    boxes,
    variances,
    label,
    kind,
    matches,
    code,
    variance_in_target,
    squares,
    inside,
    decoded,
    losses,
):
    corners, count = label[:, CORNERS : CORNERS + 4], boxes.shape[1]
    for row in range(begin, end):
        n, p = divmod(row, count)
        prior = box_at(boxes[n if boxes.shape[0] > 1 else 0], p)
        variance = box_at(variances, p)
        loss = losses.dtype.type(0)
        for c in range(matches.shape[1]):
            match = matches[n, c, p]
            if match < 0:
                continue
            own = box_at(numbers[n, p], kind[match] if numbers.shape[2] > 1 else 0)
            for d in _differences(
                *(own, prior, variance, box_at(corners, match)),
                *(code, variance_in_target, inside, decoded),
            ):
                size, half = abs(d), type(d)(0.5)
                loss += half * d * d if squares or size < 1 else size - half
        losses[n, p] = loss


@kernel
def location_losses(
    numbers: np.ndarray,
    boxes: np.ndarray,
    variances: np.ndarray,
    label: np.ndarray,
    kind: np.ndarray,
    matches: np.ndarray,
    location: Location,
    losses: np.ndarray,
) -> None:
    """Set losses (N, P) of the predictions (N, P, L, 4), 0 without a match.

    ``boxes`` are priors (N or 1, P, 4), ``variances`` theirs (P, 4).  With L above 1 each class has
    its own predictions.
    """
    args = numbers, boxes, variances, label, kind, matches, *location.numbers(), losses
    parallel_for(_location_losses, losses.size, *args, grain=PRIORS_PER_CHUNK)


@jit
def _location_gradient(
    begin,
    end,
    numbers,
    boxes,
    variances,
    label,
    kind,
    matches,
    code,
    variance_in_target,
    squares,
    inside,
    decoded,
    weight,
    gradient,
):
    corners, count = label[:, CORNERS : CORNERS + 4], boxes.shape[1]
    one = gradient.dtype.type(1)
    for row in range(begin, end):
        n, p = divmod(row, count)
        gradient[n, p] = 0
        for c in range(matches.shape[1]):
            match = matches[n, c, p]
            if match < 0:
                continue
            k = kind[match] if numbers.shape[2] > 1 else 0
            prior = box_at(boxes[n if boxes.shape[0] > 1 else 0], p)
            variance = box_at(variances, p)
            differences = _differences(
                *(box_at(numbers[n, p], k), prior, variance, box_at(corners, match)),
                *(code, variance_in_target, inside, decoded),
            )
            for i in range(4):
                d = differences[i]
                sign = one if d > 0 else -one
                gradient[n, p, k, i] = weight * (d if squares or not abs(d) >= 1 else sign)


@kernel
def location_gradient(
    numbers: np.ndarray,
    boxes: np.ndarray,
    variances: np.ndarray,
    label: np.ndarray,
    kind: np.ndarray,
    matches: np.ndarray,
    location: Location,
    weight: float,
    normalizer: np.ndarray,
    gradient: np.ndarray,
) -> None:
    """Set gradient (N, P, L, 4) to weight / normalizer times the slope of `location_losses`.

    As in the fork, the slope is that over the difference: with ``variance_in_target`` it lacks the
    factor 1 / variance.  ``normalizer`` is (1,), float64.
    """
    factor = gradient.dtype.type(weight / normalizer[0])
    args = numbers, boxes, variances, label, kind, matches, *location.numbers(), factor, gradient
    rows = numbers.shape[0] * numbers.shape[1]
    parallel_for(_location_gradient, rows, *args, grain=PRIORS_PER_CHUNK)


@jit
def _classes(begin, end, matches, kind, background, classes):
    for n in range(begin, end):
        for p in range(classes.shape[1]):
            classes[n, p] = background
            for c in range(matches.shape[1]):
                if matches[n, c, p] >= 0:
                    classes[n, p] = kind[matches[n, c, p]]


@kernel
def prior_classes(
    matches: np.ndarray, kind: np.ndarray, background: int, classes: np.ndarray
) -> None:
    """Set classes (N, P), int32, to those of the matched labels, the others to ``background``.

    Of several matches of a prior the one of the highest class counts.
    """
    parallel_for(_classes, len(classes), matches, kind, background, classes)


@jit
def _tile_losses(scores, classes, losses, columns, largest, total):
    """`_softmax_losses` of a few rows; the inner loops run over rows, so they are vectors.

    The last three are scratch: a column of scores in each row, and two numbers for each row.
    """
    rows, number = losses.size, losses.dtype.type
    for r in range(rows):
        row = scores[r]
        for c in range(row.size):
            columns[c, r] = row[c]
    for r in range(rows):
        largest[r], total[r] = columns[0, r], 0
    for c in range(1, len(columns)):
        column = columns[c]
        for r in range(rows):
            largest[r] = max(largest[r], column[r])
    for c in range(len(columns)):
        column = columns[c]
        for r in range(rows):
            power = exponential(column[r] - largest[r])
            column[r] = power
            total[r] += power
    for r in range(rows):
        own = columns[classes[r], r] / total[r]
        if own < SMALLEST_PROBABILITY:
            own = number(SMALLEST_PROBABILITY)
        losses[r] = -math.log(np.float64(own))


@jit
def _softmax_losses(begin, end, scores, classes, losses):
    columns = np.empty((scores.shape[1], ROWS_PER_TILE), losses.dtype)
    largest, total = np.empty(ROWS_PER_TILE, losses.dtype), np.empty(ROWS_PER_TILE, losses.dtype)
    for first in range(begin, end, ROWS_PER_TILE):
        rows = slice(first, min(end, first + ROWS_PER_TILE))
        _tile_losses(scores[rows], classes[rows], losses[rows], columns, largest, total)


@kernel
def softmax_losses(scores: np.ndarray, classes: np.ndarray, losses: np.ndarray) -> None:
    """Set losses (rows) to -log(softmax of the class), for scores (rows, all classes)."""
    parallel_for(_softmax_losses, len(scores), scores, classes, losses, grain=PRIORS_PER_CHUNK)


@jit
def _softmax_gradients(begin, end, scores, classes, counted, weight, gradient):
    for row in range(begin, end):
        target = gradient[row]
        if not counted[row]:
            target[:] = 0
            continue
        softmax_row(scores[row], target)
        target *= weight
        target[classes[row]] -= weight


@kernel
def softmax_gradients(
    scores: np.ndarray,
    classes: np.ndarray,
    counted: np.ndarray,
    weight: float,
    normalizer: np.ndarray,
    gradient: np.ndarray,
) -> None:
    """Set gradient (rows, all classes) of the counted rows' `softmax_losses`, the others to 0.

    It is multiplied by weight / normalizer; ``normalizer`` is (1,), float64.
    """
    args = scores, classes, counted, gradient.dtype.type(weight / normalizer[0]), gradient
    parallel_for(_softmax_gradients, len(scores), *args, grain=PRIORS_PER_CHUNK)


@jit
def _one_hot(begin, end, classes, targets):
    for row in range(begin, end):
        for c in range(targets.shape[1]):
            targets[row, c] = c == classes[row]


@kernel
def one_hot(classes: np.ndarray, targets: np.ndarray) -> None:
    """Set targets (rows, all classes) to 1 at each row's class, else 0; no class gives all 0."""
    parallel_for(_one_hot, len(classes), classes, targets, grain=PRIORS_PER_CHUNK)


@jit
def _unmined_targets(begin, end, matches, kind, background, targets):
    images, priors, classes = targets.shape
    places = targets.reshape(-1)
    places[:] = background
    for n in range(images):
        for c in range(matches.shape[1]):
            for p in range(priors):
                match = matches[n, c, p]
                if match >= 0:
                    places[n * priors + p * classes + kind[match]] = 1


@kernel
def unmined_targets(
    matches: np.ndarray, kind: np.ndarray, background: int, targets: np.ndarray
) -> None:
    """Set targets (N, P, all classes) as the fork does without mining.

    All are the number ``background``, and 1 for each match.  The fork moves on by P, not by P times
    the classes, from image to image: the ones of all images but the first are misplaced.
    """
    parallel_for(_unmined_targets, 1, matches, kind, background, targets)


@jit
def _logistic_losses(begin, end, scores, targets, losses):
    classes = scores.shape[1]
    powers = np.empty(classes, scores.dtype)
    for row in range(begin, end):
        values, goals = scores[row], targets[row]
        for c in range(classes):
            powers[c] = exponential(-abs(values[c]))
        # log(1 + p) + log(1 + q) = log((1 + p)·(1 + q)): one logarithm for many classes.
        loss, product = 0.0, 1.0
        for c in range(classes):
            loss += max(values[c], 0) - values[c] * goals[c]
            product *= 1.0 + powers[c]
            if product > LARGE_PRODUCT:
                loss += math.log(product)
                product = 1.0
        losses[row] = loss + math.log(product)


@kernel
def logistic_losses(scores: np.ndarray, targets: np.ndarray, losses: np.ndarray) -> None:
    """Set losses (rows) to the sums of the classes' sigmoid cross entropies with ``targets``."""
    parallel_for(_logistic_losses, len(scores), scores, targets, losses, grain=PRIORS_PER_CHUNK)


@jit
def _logistic_gradients(begin, end, scores, targets, counted, weight, gradient):
    one = gradient.dtype.type(1)
    for row in range(begin, end):
        for c in range(scores.shape[1]):
            gradient[row, c] = 0
            if counted[row]:
                own = one / (one + exponential(-scores[row, c]))
                gradient[row, c] = weight * (own - targets[row, c])


@kernel
def logistic_gradients(
    scores: np.ndarray,
    targets: np.ndarray,
    counted: np.ndarray,
    weight: float,
    normalizer: np.ndarray,
    gradient: np.ndarray,
) -> None:
    """Set gradient (rows, all classes) of the counted rows' `logistic_losses`, the others to 0."""
    args = scores, targets, counted, gradient.dtype.type(weight / normalizer[0]), gradient
    parallel_for(_logistic_gradients, len(scores), *args, grain=PRIORS_PER_CHUNK)


@jit
def _image_losses(
    begin,
    end,
    location,
    classes,
    matches,
    counted,
    location_weight,
    class_weight,
    losses,
    found,
):
    for n in range(begin, end):
        boxes, scores, count = 0.0, 0.0, 0
        for p in range(counted.shape[1]):
            boxes += location[n, p]
            if counted[n, p]:
                scores += classes[n, p]
            for c in range(matches.shape[1]):
                count += matches[n, c, p] >= 0
        losses[n] = 0.0
        # A NaN must not come from a loss that does not count.
        if location_weight != 0:
            losses[n] += location_weight * boxes
        if class_weight != 0:
            losses[n] += class_weight * scores
        found[n] = count


@kernel
def image_losses(
    location: np.ndarray,
    classes: np.ndarray,
    matches: np.ndarray,
    counted: np.ndarray,
    weights: tuple[float, float],
    losses: np.ndarray,
    found: np.ndarray,
) -> None:
    """Set losses (N), float64, to each image's weighted sum, and found (N), int64, to its matches.

    ``location`` and ``classes`` are losses (N, P), of which those of classes count where
    ``counted``; the weights are of both.
    """
    args = location, classes, matches, counted, *weights, losses, found
    parallel_for(_image_losses, len(losses), *args)
