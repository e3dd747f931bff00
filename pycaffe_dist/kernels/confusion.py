"""Counts of predicted classes by label."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import copy_values, jit
from pycaffe_dist.kernels.labels import NOTHING_WRONG, wrong_code
from pycaffe_dist.threads import parallel_for

# Predictions of one unit of work.
PREDICTIONS = 512
ELEMENTS_PER_CHUNK = 1 << 14
IGNORED, WRONG = -1, -2


@jit
def _cells(begin, end, scores, labels, ignored, cells):
    classes, inner = scores.shape[1], scores.shape[2]
    blocks = (inner + PREDICTIONS - 1) // PREDICTIONS
    best, chosen = np.empty(PREDICTIONS, scores.dtype), np.empty(PREDICTIONS, np.int32)
    for unit in range(begin, end):
        n, first = unit // blocks, unit % blocks * PREDICTIONS
        last = min(first + PREDICTIONS, inner)
        count = last - first
        copy_values(scores[n, 0, first:last], best)
        chosen[:count] = 0
        for c in range(1, classes):
            row = scores[n, c, first:last]
            for i in range(count):
                take = row[i] >= best[i]
                best[i] = row[i] if take else best[i]
                chosen[i] = np.int32(c) if take else chosen[i]
        for i in range(count):
            label = labels[n, first + i]
            cell = WRONG
            if label > -1 and label < classes:
                cell = np.int64(label) * classes + chosen[i]
            for number in ignored:
                if label > number - 1 and label < number + 1 and np.int64(label) == number:
                    cell = IGNORED
            cells[n, first + i] = cell


@jit
def _count(begin, end, cells, counts, wrong_at):
    for i in range(len(cells)):
        cell = cells[i]
        if cell >= 0:
            counts[np.uint64(cell)] += 1
        elif cell == WRONG and wrong_at[0] < 0:
            wrong_at[0] = i


@kernel
def add_to_confusion(
    scores: np.ndarray,
    labels: np.ndarray,
    ignored: np.ndarray,
    counts: np.ndarray,
    wrong: np.ndarray,
) -> None:
    """Count predictions in row label, column prediction of ``counts`` (classes, classes, int64).

    Scores are (outer, classes, inner); the class with the largest is predicted, of equals the last.
    Labels (outer, inner) are cut to integers; those in ``ignored`` (int64) are left out.  ``wrong``
    (1,) gets the first one that is no class, as `kernels.labels` describes.
    """
    cells, wrong_at = np.empty(labels.shape, np.int64), np.full(1, -1, np.int64)
    units = scores.shape[0] * -(-scores.shape[2] // PREDICTIONS)
    grain = max(1, ELEMENTS_PER_CHUNK * units // max(1, scores.size))
    parallel_for(_cells, units, scores, labels, ignored, cells, grain=grain)
    parallel_for(_count, 1, cells.reshape(-1), counts.reshape(-1), wrong_at)
    at = int(wrong_at[0])
    wrong[0] = NOTHING_WRONG if at < 0 else wrong_code(at, labels.reshape(-1)[at])
