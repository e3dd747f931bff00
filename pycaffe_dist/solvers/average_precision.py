"""The average precision of a class's detections, in the three ways of weiliu89/caffe."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Curve = tuple[np.ndarray, np.ndarray]  # recall and precision after each detection


def _curve(hits: np.ndarray, boxes: int) -> Curve:
    found = np.cumsum(hits)
    return found / boxes, found / np.arange(1, len(hits) + 1)


def _at_eleven_points(recall: np.ndarray, precision: np.ndarray) -> float:
    """The mean of the best precisions at a recall of at least 0, 0.1, …, 1 (PASCAL VOC 2007)."""
    # The fork's recall is float32, so that 7 of 10 boxes are less than 0.7.
    recall = recall.astype(np.float32).astype(np.float64)
    points = [precision[recall >= tenth / 10].max(initial=0) for tenth in range(11)]
    return float(np.mean(points))


def _below_the_hull(recall: np.ndarray, precision: np.ndarray) -> float:
    """The area below the precision when it is made to fall only (PASCAL VOC 2012, ILSVRC)."""
    return _below_the_curve(recall, np.maximum.accumulate(precision[::-1])[::-1])


def _below_the_curve(recall: np.ndarray, precision: np.ndarray) -> float:
    """The area below the precision, a step for each box found."""
    return float((precision * np.diff(recall, prepend=0)).sum())


VERSIONS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "11point": _at_eleven_points,
    "MaxIntegral": _below_the_hull,
    "Integral": _below_the_curve,
}


def average_precision(scores: np.ndarray, hits: np.ndarray, boxes: int, version: str) -> float:
    """Return the average precision of detections; 0 if there are no detections or no boxes.

    ``scores`` and ``hits`` (1 for a box found, 0 for a false alarm) have one value per detection;
    of equal scores the first counts first.  ``boxes`` is the number of boxes to be found,
    ``version`` a key of ``VERSIONS``.
    """
    if not boxes or not len(scores):
        return 0.0
    order = np.argsort(-scores, kind="stable")
    return VERSIONS[version](*_curve(hits[order], boxes))
