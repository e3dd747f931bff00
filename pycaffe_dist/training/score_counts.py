"""Counts of a classifier's scores in a test: which class it took for which, and how sure it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.net import Net

MOST_CLASSES = 1000
THRESHOLDS = 101  # 0, 0.01, … 1


class Curve(NamedTuple):
    """Counts at each of `THRESHOLDS`: of true and false positives and negatives."""

    true_positives: np.ndarray
    false_positives: np.ndarray
    true_negatives: np.ndarray
    false_negatives: np.ndarray

    @property
    def precision(self) -> np.ndarray:
        """The share of positives that are true, 1 without any."""
        positives = self.true_positives + self.false_positives
        return np.where(positives > 0, self.true_positives / np.maximum(positives, 1), 1.0)

    @property
    def recall(self) -> np.ndarray:
        """The share of a class's samples that are found."""
        return self.true_positives / np.maximum(self.true_positives + self.false_negatives, 1)


class ScoreCounts:
    """Counts the scores of a test net's Accuracy layer, over batches and then ranks.

    ``confusion`` (classes, classes) counts samples by label and by the class of the largest score.
    """

    def __init__(self, net: Net):
        self._scores, self._labels, classes = _bottoms(net)
        self.confusion = np.zeros((classes, classes))
        # By label or not, class and interval of probability.
        self._by_level = np.zeros((2, classes, THRESHOLDS))

    def __bool__(self) -> bool:
        """Tell whether the net is a classifier."""
        return len(self.confusion) > 0

    def add(self, net: Net) -> None:
        """Count the batch that the net has just run."""
        scores = np.asarray(net.blobs[self._scores].read_data(), np.float64)
        labels = np.asarray(net.blobs[self._labels].read_data()).reshape(-1).astype(np.int64)
        classes = len(self.confusion)
        scores = scores.reshape(len(labels), classes)
        known = (labels >= 0) & (labels < classes) & np.isfinite(scores).all(axis=1)
        scores, labels = scores[known], labels[known]
        taken = scores.argmax(axis=1)
        self.confusion += confusion(labels, taken, classes)
        level = (probabilities(scores) * (THRESHOLDS - 1)).astype(np.int64)
        places = np.arange(classes) * THRESHOLDS + level
        places += (np.arange(classes) == labels[:, None]) * (classes * THRESHOLDS)
        self._by_level += _count(places.reshape(-1), self._by_level.size).reshape(2, classes, -1)

    def gather(self, cluster: Cluster) -> None:
        """Add up the counts of all ranks, on all ranks."""
        both = cluster.sum(np.concatenate([self.confusion.reshape(-1), self._by_level.reshape(-1)]))
        size = self.confusion.size
        self.confusion = both[:size].reshape(self.confusion.shape)
        self._by_level = both[size:].reshape(self._by_level.shape)

    def curve(self, label: int | None = None) -> Curve:
        """Return the counts of a class against all others; without one, of all classes together."""
        chosen = self._by_level.sum(axis=1) if label is None else self._by_level[:, label]
        above = chosen[:, ::-1].cumsum(axis=1)[:, ::-1]
        (false, true), (negatives, positives) = above, above[:, 0]
        return Curve(true, false, negatives - false, positives - true)


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Return scores (N, classes) if they are probabilities already, else their softmax."""
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
        return np.minimum(scores, 1)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def confusion(labels: np.ndarray, answers: np.ndarray, classes: int) -> np.ndarray:
    """Return how many samples of each label (rows) got each answer (columns)."""
    return _count(labels * classes + answers, classes**2).reshape(classes, classes)


def _count(places: np.ndarray, size: int) -> np.ndarray:
    return np.bincount(places, minlength=size).astype(np.float64)


def _bottoms(net: Net) -> tuple[str, str, int]:
    """Return the blobs of scores and labels, and the number of classes; 0 for no classifier."""
    for node in net.nodes:
        if node.layer.type != "Accuracy":
            continue
        scores, labels = node.bottom[:2]
        samples = labels.count
        if not samples or (samples, samples) != (scores.shape[0], labels.shape[0]):
            continue
        if (classes := scores.count // samples) <= MOST_CLASSES:
            return node.bottom_names[0], node.bottom_names[1], classes
    return "", "", 0
