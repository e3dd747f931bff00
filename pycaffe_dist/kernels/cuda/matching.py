"""Matching and mining of priors on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.device import xp
from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.rows import block_size
from pycaffe_dist.kernels.labels import NOTHING_WRONG
from pycaffe_dist.kernels.matching import Matching, Mining, Reading

_cu = kernels("matching")


def read_labels(label: Any, reading: Reading, owner: Any, kind: Any, wrong: Any) -> None:
    """See `pycaffe_dist.kernels.matching.read_labels`."""
    wrong.fill(NOTHING_WRONG)
    options = reading.images, reading.classes, reading.background, reading.agnostic
    rows = owner.size
    _cu.read_labels(rows, label, *options, reading.difficult, owner, kind, wrong, rows)


def check_priors(priors: Any, sized: bool, wrong: Any) -> None:
    """See `pycaffe_dist.kernels.matching.check_priors`."""
    wrong.fill(NOTHING_WRONG)
    _cu.check_priors(priors.size, priors, sized, wrong, priors.shape[1])


def match_boxes(
    boxes: Any,
    label: Any,
    owner: Any,
    kind: Any,
    matching: Matching,
    matches: Any,
    overlaps: Any,
) -> None:
    """See `pycaffe_dist.kernels.matching.match_boxes`."""
    images, classes, priors = matches.shape
    nearest = xp().empty(matches.shape, np.int32)
    best, largest = xp().empty(owner.size, np.int32), xp().empty(owner.size, label.dtype)
    how = matching.per_class, matching.per_prediction, matching.threshold, matching.inside
    arrays = matches, overlaps, nearest, best, largest
    sizes = boxes.shape[0] == 1, classes, priors, owner.size, images * classes
    threads = block_size(priors)
    _cu.match_boxes.blocks(
        sizes[-1], boxes, label, owner, kind, *how, *arrays, *sizes, threads=threads
    )


def mine(
    boxes: Any,
    owner: Any,
    overlaps: Any,
    allowed: Any,
    mining: Mining,
    matches: Any,
    class_losses: Any,
    location_losses: Any,
    counted: Any,
) -> None:
    """See `pycaffe_dist.kernels.matching.mine`."""
    images, priors = counted.shape
    keys = xp().empty(counted.shape, np.float32)
    how = mining.hard, mining.sample, mining.ratio, mining.overlap, mining.suppression
    results = matches, class_losses, location_losses, counted, keys
    sizes = boxes.shape[0] == 1, priors, owner.size, images
    arrays = boxes, owner, overlaps, allowed
    threads = block_size(priors)
    _cu.mine.blocks(images, *arrays, *how, mining.top_k, *results, *sizes, threads=threads)
