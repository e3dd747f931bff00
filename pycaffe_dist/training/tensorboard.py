"""A run as TensorBoard shows it: records as curves, and looks at weights, maps, tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.solvers.callbacks import Metrics
from pycaffe_dist.training.event_file import EventFile
from pycaffe_dist.training.pictures import counts_picture, tiles, with_boxes
from pycaffe_dist.training.score_counts import ScoreCounts

if TYPE_CHECKING:
    from pycaffe_dist.net import Net
    from pycaffe_dist.solvers import Solver

# The time of looks at weights and maps is at most this share of a run's.
_SHARE = 0.002
_IMAGES, _MAPS, _CLASSES = 16, 64, 20
_FIRST_LAYERS = 2
_GROUPS = {
    "weights": "norms of weights",
    "gradient": "norms of gradients",
    "update": "norms of updates",
    "ratio": "updates to weights",
}


class TensorBoard:
    """Writes a solver's run to a folder for TensorBoard, on rank 0; all ranks must follow.

    Every record becomes numbers.  At some displays, so that it takes little time, follow histograms
    of weights and mean gradients, the first layers' filters and maps, and inputs; at tests
    confusion and precision of a classifier, and boxes of a detector.  Raises UsageError as
    `EventFile` does.
    """

    def __init__(self, folder: str, solver: Solver):
        self._folder = folder
        self._file: EventFile | None = None
        self._next_look = 0.0
        self._counts = {number: ScoreCounts(net) for number, net in enumerate(solver.test_nets)}
        solver.testing.after_batch.append(self._count)
        solver.callbacks.after_tests.append(self._show_tests)
        if solver.cluster.rank == 0:
            self._file = EventFile(folder, solver.iteration)
            solver.callbacks.on_record.append(self._record)
            solver.callbacks.at_display.append(self._look)

    def _record(self, solver: Solver, record: Metrics) -> None:
        assert self._file is not None
        if record["kind"] == "start":
            results = [
                f"test{number}/{name}"
                for number, net in enumerate(solver.test_nets)
                for name in net.outputs
            ]
            self._file.settings(record["solver"], ["train/loss", *results])
            self._file.net(solver.net.definition)
        elif "loss" in record:
            self._file.numbers(record["iteration"], record["time"], numbers(record))
            if record["kind"] == "train" and "learning_rate" not in record:  # the last one
                with device.use(device.HOST):
                    self._show_net(self._file, solver.net, solver.iteration)
        # A run that continues from a snapshot adds what follows it.
        at_once = record["kind"] in ("start", "snapshot") or _ends(solver)
        self._file.flush(at_once)

    def _look(self, solver: Solver) -> None:
        if time.perf_counter() < self._next_look or self._file is None:
            return
        began = time.thread_time()
        for parameter in reversed(solver.net.parameters):
            solver.engine.wait(parameter)
        for parameter in solver.net.parameters:
            if parameter.receives_gradient and not solver.engine.updates(parameter):
                tag = f"gradients/{_tag(parameter.key)}"
                self._file.histogram(solver.iteration, tag, parameter.blob.read_diff())
        self._show_net(self._file, solver.net, solver.iteration)
        spent = time.thread_time() - began
        self._next_look = time.perf_counter() + spent / _SHARE

    def _show_net(self, file: EventFile, net: Net, step: int) -> None:
        for parameter in net.parameters:
            file.histogram(step, f"weights/{_tag(parameter.key)}", parameter.blob.read_data())
        for tag, picture in _pictures(net):
            file.picture(step, tag, picture)

    def _count(self, net: Net, number: int) -> None:
        if self._counts[number]:
            with device.use(device.HOST):
                self._counts[number].add(net)

    def _show_tests(self, solver: Solver) -> None:
        for number, net in enumerate(solver.test_nets):
            counts = self._counts[number]
            self._counts[number] = ScoreCounts(net)
            if counts:
                counts.gather(solver.cluster)
            if self._file is None:
                continue
            if counts:
                self._show_counts(solver.iteration, f"test{number}", counts)
            with device.use(device.HOST):
                for tag, picture in _detections(net):
                    self._file.picture(solver.iteration, f"test{number}/{tag}", picture)
        if self._file is not None:
            self._file.flush(at_once=_ends(solver))

    def _show_counts(self, step: int, tag: str, counts: ScoreCounts) -> None:
        assert self._file is not None
        self._file.picture(step, f"{tag}/confusion", counts_picture(counts.confusion))
        self._file.curve(step, f"{tag}/all", counts.curve())
        for label in range(min(_CLASSES, len(counts.confusion))):
            self._file.curve(step, f"{tag}/class {label}", counts.curve(label))


def _ends(solver: Solver) -> bool:
    return solver.iteration >= solver.param.max_iter


def numbers(record: Metrics) -> dict[str, float]:
    """Return a record's numbers by TensorBoard's tags; those that are not finite stay out."""
    group = "train" if record["kind"] == "train" else f"test{record['net']}"
    found: dict[str, Any] = {f"{group}/loss": record["loss"]}
    for name, values in record.get("outputs", {}).items():
        for index, value in enumerate(values):
            found[f"{group}/{name}" + (f"/{index}" if len(values) > 1 else "")] = value
    for name in ("learning_rate", "loss_scale", "images_per_second", "epoch"):
        if group == "train" and name in record:
            found[f"run/{name}"] = record[name]
    for name, share in record.get("shares", {}).items():
        found[f"shares of time/{name}"] = share
    for key, norms in record.get("parameters", {}).items():
        for name, value in norms.items():
            found[f"{_GROUPS[name]}/{_tag(key)}"] = value
    for name, times in record.get("layers", {}).items():
        for what, spent in times.items():
            found[f"{what} of layers/{name}"] = spent
    for name, share in record.get("dead", {}).items():
        found[f"dead channels/{name}"] = share
    return {tag: value for tag, value in found.items() if value is not None and np.isfinite(value)}


def _tag(key: str) -> str:
    return key.replace("[", "/").replace("]", "")


def _pictures(net: Net) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tags and pictures of inputs, first filters, and maps of the first sample."""
    for node in net.nodes:
        if not node.bottom and node.top and _shows_images(node.top[0].shape):
            yield "inputs", tiles(node.top[0].read_data(), _IMAGES)
            break
    maps = (node for node in net.nodes if node.layer.type == "Convolution")
    for _, node in zip(range(_FIRST_LAYERS), maps):
        weights = node.layer.blobs[0].read_data()
        shown = weights if _shows_images(weights.shape) else weights[:, 0]
        if weights.ndim == 4 and weights.shape[-1] > 1:
            yield f"filters/{node.name}", tiles(shown, _MAPS)
        if node.top[0].ndim == 4 and node.top[0].count:
            yield f"maps/{node.name}", tiles(node.top[0].read_data()[0], _MAPS)


def _detections(net: Net) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tags and pictures of images of the last batch, with what the net found."""
    found = [node for node in net.nodes if node.layer.type == "DetectionOutput"]
    inputs = [node.top[0] for node in net.nodes if not node.bottom and node.top]
    images = next((blob for blob in inputs if _shows_images(blob.shape)), None)
    if not found or images is None:
        return
    rows = np.asarray(found[0].top[0].read_data(), np.float64).reshape(-1, 7)
    for index, image in enumerate(images.read_data()[: _IMAGES // 4]):
        yield f"detections/{index}", with_boxes(image, rows[rows[:, 0] == index, 1:])


def _shows_images(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and shape[1] in (1, 3) and min(shape) > 0
