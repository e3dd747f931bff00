"""The losses of predicted boxes and of their classes on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.rows import block_size
from pycaffe_dist.kernels.multibox import SMALLEST_PROBABILITY, Location

_cu = kernels("multibox")


def location_losses(
    numbers: Any,
    boxes: Any,
    variances: Any,
    label: Any,
    kind: Any,
    matches: Any,
    location: Location,
    losses: Any,
) -> None:
    """See `pycaffe_dist.kernels.multibox.location_losses`."""
    arrays = numbers, boxes, variances, label, kind, matches
    sizes = boxes.shape[0] == 1, *numbers.shape[1:3], matches.shape[1], losses.size
    _cu.location_losses(losses.size, *arrays, *location.numbers(), losses, *sizes)


def location_gradient(
    numbers: Any,
    boxes: Any,
    variances: Any,
    label: Any,
    kind: Any,
    matches: Any,
    location: Location,
    weight: float,
    normalizer: Any,
    gradient: Any,
) -> None:
    """See `pycaffe_dist.kernels.multibox.location_gradient`."""
    rows = numbers.shape[0] * numbers.shape[1]
    arrays = numbers, boxes, variances, label, kind, matches
    sizes = boxes.shape[0] == 1, *numbers.shape[1:3], matches.shape[1], rows
    how = *location.numbers(), weight, normalizer
    _cu.location_gradient(rows, *arrays, *how, gradient, *sizes)


def prior_classes(matches: Any, kind: Any, background: int, classes: Any) -> None:
    """See `pycaffe_dist.kernels.multibox.prior_classes`."""
    sizes = matches.shape[2], matches.shape[1], classes.size
    _cu.prior_classes(classes.size, matches, kind, background, classes, *sizes)


def softmax_losses(scores: Any, classes: Any, losses: Any) -> None:
    """See `pycaffe_dist.kernels.multibox.softmax_losses`."""
    rows, count = scores.shape
    _cu.softmax_losses(rows, scores, classes, losses, SMALLEST_PROBABILITY, count, rows)


def softmax_gradients(
    scores: Any, classes: Any, counted: Any, weight: float, normalizer: Any, gradient: Any
) -> None:
    """See `pycaffe_dist.kernels.multibox.softmax_gradients`."""
    rows, count = scores.shape
    args = scores, classes, counted, weight, normalizer, gradient
    _cu.softmax_gradients(rows, *args, count, rows)


def one_hot(classes: Any, targets: Any) -> None:
    """See `pycaffe_dist.kernels.multibox.one_hot`."""
    _cu.one_hot(targets.size, classes, targets, targets.shape[1], targets.size)


def unmined_targets(matches: Any, kind: Any, background: int, targets: Any) -> None:
    """See `pycaffe_dist.kernels.multibox.unmined_targets`."""
    targets.fill(background)
    sizes = matches.shape[2], matches.shape[1], targets.shape[2], matches.size
    _cu.unmined_targets(matches.size, matches, kind, targets, *sizes)


def logistic_losses(scores: Any, targets: Any, losses: Any) -> None:
    """See `pycaffe_dist.kernels.multibox.logistic_losses`."""
    rows, count = scores.shape
    _cu.logistic_losses(rows, scores, targets, losses, count, rows)


def logistic_gradients(
    scores: Any, targets: Any, counted: Any, weight: float, normalizer: Any, gradient: Any
) -> None:
    """See `pycaffe_dist.kernels.multibox.logistic_gradients`."""
    args = scores, targets, counted, weight, normalizer, gradient
    _cu.logistic_gradients(scores.size, *args, scores.shape[1], scores.size)


def image_losses(
    location: Any,
    classes: Any,
    matches: Any,
    counted: Any,
    weights: tuple[float, float],
    losses: Any,
    found: Any,
) -> None:
    """See `pycaffe_dist.kernels.multibox.image_losses`."""
    images, count = counted.shape
    arrays = location, classes, matches, counted
    sizes = count, matches.shape[1], images
    threads = block_size(count)
    _cu.image_losses.blocks(images, *arrays, *weights, losses, found, *sizes, threads=threads)
