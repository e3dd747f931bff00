"""Counts of predicted classes by label on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.division import division
from pycaffe_dist.kernels.labels import NOTHING_WRONG

_cu = kernels("confusion")


def add_to_confusion(scores: Any, labels: Any, ignored: Any, counts: Any, wrong: Any) -> None:
    """See `pycaffe_dist.kernels.confusion.add_to_confusion`."""
    wrong.fill(NOTHING_WRONG)
    _, classes, inner = scores.shape
    places = counts.view(np.uint64), wrong, *division(max(1, inner)), classes, inner, labels.size
    _cu.add_to_confusion(labels.size, scores, labels, ignored, ignored.size, *places)
