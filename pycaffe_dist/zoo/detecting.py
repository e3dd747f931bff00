"""Finds objects in image files with a model's deploy net."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from pycaffe_dist import log
from pycaffe_dist.api.net import Net
from pycaffe_dist.data.image import read_image
from pycaffe_dist.data.image_list import read_paths
from pycaffe_dist.data.label_map import read_label_map
from pycaffe_dist.detector import Detector
from pycaffe_dist.errors import UsageError
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.zoo.models import Model
from pycaffe_dist.zoo.preparation import prepare

EDGES = ("ymin", "xmin", "ymax", "xmax")


@dataclass(frozen=True)
class Box:
    """An object: its class by number and name (empty if unknown), score, edges in pixels."""

    index: int
    label: str
    score: float
    xmin: float
    ymin: float
    xmax: float
    ymax: float

    def __str__(self) -> str:
        edges = f"{self.xmin:.0f} {self.ymin:.0f} {self.xmax:.0f} {self.ymax:.0f}"
        return f"{self.score:.4f}  {self.index:>4}  {edges}  {self.label}".rstrip()


@dataclass(frozen=True)
class Detected:
    """The objects in an image file."""

    image: str
    boxes: list[Box]


@dataclass(frozen=True)
class AllDetected:
    """The objects in image files."""

    images: list[Detected]

    def table(self) -> str:
        """Return a line for each image, and one for each box: score, class, edges, name."""
        lines = []
        for one in self.images:
            lines += [one.image, *(f"  {box}" for box in one.boxes)]
        return "\n".join(lines)


def read_windows(path: Path) -> list[tuple[str, list[list[int]]]]:
    """Return pairs of file name and windows (ymin, xmin, ymax, xmax) of a .csv; raises UsageError.

    Its header names the columns filename, ymin, xmin, ymax and xmax, in any order.
    """
    try:
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True))
        windows = [(row["filename"], [int(float(row[edge])) for edge in EDGES]) for row in rows]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"'{path}' is no list of windows with the columns filename, {', '.join(EDGES)}: "
            f"{type(error).__name__}: {error}"
        ) from None
    groups = groupby(windows, key=lambda pair: pair[0])
    return [(name, [window for _, window in pairs]) for name, pairs in groups]


def classify_windows(
    model: Model,
    weights: str,
    windows: list[tuple[str, list[list[int]]]],
    pad: int,
    mean: str = "",
    scale: float | None = None,
    precision: str = "float32",
) -> Iterator[tuple[str, list[Box]]]:
    """Yield each image file and the best class of each of its windows, with R-CNN's kind of net.

    ``pad`` pixels of the net's input show a window's surroundings; see `prepare` for ``mean`` and
    ``scale``, and `Net` for ``precision``.  Raises UsageError and DataError.
    """
    inputs = prepare(model, mean, scale)
    names = read_paths(str(model.labels)) if model.labels is not None else []
    with log.silent():
        detector = Detector(
            model.required_deploy_net(),
            weights,
            mean=inputs.mean.mean(axis=(1, 2)),
            input_scale=inputs.scale,
            raw_scale=255,
            channel_swap=(2, 1, 0),
            context_pad=pad,
            precision=precision,
        )
        for path, some in windows:
            boxes = []
            for found in detector.detect_windows([(path, some)]):
                scores = found["prediction"].reshape(-1)
                best = int(scores.argmax())
                ymin, xmin, ymax, xmax = map(float, found["window"])
                label = names[best] if best < len(names) else ""
                boxes.append(Box(best, label, float(scores[best]), xmin, ymin, xmax, ymax))
            yield path, boxes


class BoxFinder:
    """Finds boxes with a net that ends in a DetectionOutput, as SSD's do.

    See `prepare` for ``mean`` and ``scale``.  Raises UsageError and DataError.
    """

    def __init__(
        self,
        model: Model,
        weights: str,
        label_map: str = "",
        mean: str = "",
        scale: float | None = None,
        precision: str = "float32",
    ):
        deploy_net = model.required_deploy_net()
        layers = text.read_net(deploy_net).layer
        outputs = [layer for layer in layers if layer.type == "DetectionOutput"]
        if not outputs:
            raise UsageError(
                f"{deploy_net} has no DetectionOutput: a net that classifies windows needs "
                "--windows=FILE"
            )
        self._output = outputs[0].top[0]
        whole = prepare(model, mean, scale)
        # Boxes count from the corners of a whole image: it is resized, not cropped.
        mean_of_channels = whole.mean.mean(axis=(1, 2), keepdims=True)
        self._preparation = replace(whole, size=whole.crop, mean=mean_of_channels)
        label_map = label_map or _own_label_map(model)
        labels = read_label_map(label_map) if label_map else {}
        self._names = {label: name for name, label in labels.items()}
        with log.silent():
            self._net = Net(
                str(deploy_net),
                caffe_pb2.TEST,
                weights=weights,
                keep_blobs=False,
                precision=precision,
            )
        self._input = self._net.inputs[0]

    def find(self, paths: Sequence[str], least: float) -> Iterator[list[Box]]:
        """Yield the boxes of each image file with at least this score, the best first."""
        for path in paths:
            height, width = read_image(path, self._preparation.channels == 3).shape[1:]
            image = self._preparation.crops(path, ten=False)
            self._net.blobs[self._input].reshape(*image.shape)
            with log.silent():
                inputs: dict[str, Any] = {self._input: image}
                rows = self._net.forward(**inputs)[self._output].reshape(-1, 7)
            rows = rows[(rows[:, 2] >= least) & (rows[:, 0] >= 0)]
            corners = np.clip(rows[:, 3:], 0, 1) * [width, height, width, height]
            order = np.argsort(-rows[:, 2], kind="stable")
            yield [self._box(rows[i], corners[i]) for i in order]

    def _box(self, row: np.ndarray, corners: np.ndarray) -> Box:
        index = int(row[1])
        return Box(index, self._names.get(index, ""), float(row[2]), *map(float, corners))


def _own_label_map(model: Model) -> str:
    """Return the label map that a model's nets name, if the file is there."""
    nets = [text.read_net(path) for path in (model.train_net, model.deploy_net) if path]
    for layer in (layer for net in nets for layer in net.layer):
        saved = layer.detection_output_param.save_output_param.label_map_file
        for file in (layer.annotated_data_param.label_map_file, saved):
            if file and Path(file).is_file():
                return file
    return ""
