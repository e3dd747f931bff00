"""The detections of a test net, gathered over batches and ranks, and their average precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.errors import UsageError
from pycaffe_dist.layers import Layer
from pycaffe_dist.layers.detection_evaluate import DetectionEvaluate
from pycaffe_dist.layers.detection_output import DetectionOutput
from pycaffe_dist.log import fmt, logger
from pycaffe_dist.net import Net
from pycaffe_dist.solvers.average_precision import average_precision

_COLUMNS = 4  # batch, class, score, 1 for a box found or 0 for a false alarm


def list_outputs(net: Net) -> dict[str, Layer]:
    """Return the layers that make outputs with lists of detections, by the outputs' names.

    Such lists have no mean over batches.
    """
    made_by = {name: node.layer for node in net.nodes for name in node.top_names}
    layers = {name: made_by[name] for name in net.outputs if name in made_by}
    kinds = DetectionEvaluate, DetectionOutput
    return {name: layer for name, layer in layers.items() if isinstance(layer, kinds)}


def evaluating_layers(net: Net) -> dict[str, DetectionEvaluate]:
    """Return the DetectionEvaluate layers that make outputs of the net, by the outputs' names."""
    found = list_outputs(net).items()
    return {name: layer for name, layer in found if isinstance(layer, DetectionEvaluate)}


def measured_outputs(net: Net) -> list[str]:
    """Return the outputs that tests give values: all but lists that no layer evaluates."""
    lists, evaluated = list_outputs(net), evaluating_layers(net)
    return [name for name in net.outputs if name not in lists or name in evaluated]


def write_files(net: Net, cluster: Cluster) -> None:
    """Let rank 0 write the detections of all ranks; one rank alone writes during its forwards."""
    if cluster.size == 1:
        return
    for layer in net.layers:
        if isinstance(layer, DetectionOutput) and layer.files is not None:
            parts = cluster.gather_bytes(layer.files.give())
            if cluster.rank == 0:
                layer.files.take(parts)


def check_outputs(net: Net, number: int) -> None:
    """Raise UsageError unless test net ``number`` evaluates detections."""
    if not evaluating_layers(net):
        outputs = ", ".join(net.outputs) or "none"
        raise UsageError(
            'eval_type: "detection" needs test nets with an output of a DetectionEvaluate layer; '
            f"the outputs of test net #{number} are: {outputs}"
        )


@dataclass(frozen=True)
class Found:
    """The detections of all ranks in one output, in the order of batches.

    ``boxes`` has the number of boxes to be found, by class; ``labels``, ``scores`` and ``hits``
    have one value per detection.
    """

    boxes: Mapping[int, int]
    labels: np.ndarray
    scores: np.ndarray
    hits: np.ndarray

    def precisions(self, version: str) -> dict[int, float]:
        """Return each class's average precision; see `average_precision`."""
        found = {}
        for label, boxes in self.boxes.items():
            own = self.labels == label
            found[label] = average_precision(self.scores[own], self.hits[own], boxes, version)
        return found

    def mean_precision(self, version: str) -> float:
        """Return the mean average precision over the classes; 0 without classes."""
        found = self.precisions(version)
        return sum(found.values()) / max(1, len(found))

    def log_classes(self, version: str, with_precision: bool) -> None:
        """Log each class's average precision, if wanted, or that it has no detections.

        In the fork's words.
        """
        detected = set(self.labels.tolist())
        for label, precision in self.precisions(version).items():
            if label not in detected:
                logger.warning("Missing true_pos for label: %d", label)
            elif with_precision:
                logger.info("class%d: %s", label, fmt(precision))


class Detections:
    """Collects, batch by batch, what this rank's DetectionEvaluate layers find."""

    def __init__(self, net: Net):
        self._net = net
        self._layers = evaluating_layers(net)
        self._boxes = {name: np.zeros(len(layer.classes)) for name, layer in self._layers.items()}
        self._rows: dict[str, list[np.ndarray]] = {name: [] for name in self._layers}

    def add(self, batch: int) -> None:
        """Take over the outputs of the last forward, the test's batch number ``batch``."""
        for name, layer in self._layers.items():
            values = self._net.blobs[name].read_data().reshape(-1, 5)
            about, rows = np.split(values, [len(layer.classes)])
            self._boxes[name] += about[:, 2]
            # A box that is too difficult to count is neither found nor a false alarm.
            rows = rows[(rows[:, 3:] != 0).any(axis=1)]
            number = np.full(len(rows), batch, rows.dtype)
            self._rows[name].append(np.column_stack((number, rows[:, 1:_COLUMNS])))

    def gather(self, cluster: Cluster) -> dict[str, Found]:
        """Return the detections of all ranks, by output: on every rank the same."""
        return {name: self._gather(name, cluster) for name in self._layers}

    def _gather(self, name: str, cluster: Cluster) -> Found:
        dtype = self._net.blobs[name].dtype
        mine = np.concatenate([np.empty((0, _COLUMNS), dtype), *self._rows[name]])
        parts = [np.frombuffer(data, dtype) for data in cluster.gather_bytes(mine.tobytes())]
        rows = np.concatenate(parts).reshape(-1, _COLUMNS)
        _, labels, scores, hits = rows[np.argsort(rows[:, 0], kind="stable")].T
        counts = cluster.sum(self._boxes[name]).astype(int).tolist()
        boxes = dict(zip(self._layers[name].classes, counts))
        return Found(boxes, labels.astype(int), scores, hits)
