#!/usr/bin/env python3
"""Measure how close the features of a class are, and draw two-dimensional ones.

usage: scripts/center_loss_features.py NET PICTURE TITLE=WEIGHTS …

NET's TEST phase runs over its data once for each file of weights.  The accuracy and the ratio of
the distance within a class to the distance between classes are printed, and the features drawn.
"""

from __future__ import annotations

import sys

import matplotlib as mpl
import numpy as np

import pycaffe_dist as caffe

mpl.use("Agg")
import matplotlib.pyplot as plt

BATCHES = 100


def features_of(net_file: str, weights: str, batches: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return features (N, D), labels (N,) and the accuracy over batches of the test data."""
    net = caffe.Net(net_file, caffe.TEST, weights=weights)
    parts, labels, accuracies = [], [], []
    for _ in range(batches):
        accuracies.append(float(net.forward()["accuracy"]))
        parts.append(net.blobs["feature"].data.copy())
        labels.append(net.blobs["label"].data.copy())
    return np.concatenate(parts), np.concatenate(labels).astype(int), float(np.mean(accuracies))


def ratio(features: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean distance to the class's mean, divided by the mean distance of two means."""
    classes = np.unique(labels)
    means = np.array([features[labels == k].mean(axis=0) for k in classes])
    within = np.linalg.norm(features - means[np.searchsorted(classes, labels)], axis=1).mean()
    apart = np.linalg.norm(means[:, None] - means[None], axis=2)
    return float(within / apart[np.triu_indices(len(classes), 1)].mean())


def main(net_file: str, picture: str, *runs: str, batches: int = BATCHES) -> dict[str, tuple]:
    """Print and draw; return accuracy and ratio of each run."""
    figure, axes = plt.subplots(1, len(runs), figsize=(5.5 * len(runs), 5), squeeze=False)
    results = {}
    for run, axis in zip(runs, axes[0]):
        title, _, weights = run.partition("=")
        features, labels, accuracy = features_of(net_file, weights, batches)
        results[title] = accuracy, ratio(features, labels)
        print(f"{title}: accuracy {accuracy:.4f}, within / between {results[title][1]:.3f}")
        axis.scatter(*features.T, c=labels, s=3, cmap="tab10", vmin=0, vmax=9)
        axis.set_title(f"{title}: accuracy {accuracy:.3f}, ratio {results[title][1]:.3f}")
    figure.savefig(picture, dpi=70)
    return results


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
