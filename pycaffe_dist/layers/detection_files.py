"""Files with the detections of a data set, for the programs that rate them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pycaffe_dist import atomic
from pycaffe_dist.data.image_sizes import read_image_sizes
from pycaffe_dist.data.label_map import read_label_map
from pycaffe_dist.data.resizing import check_resize
from pycaffe_dist.errors import DataError, PcaffeError
from pycaffe_dist.layers.box_scaling import in_pixels
from pycaffe_dist.schema import caffe_pb2

FORMATS = ("VOC", "COCO", "ILSVRC")
_COLUMNS = 7  # number of the image, class, score, x1, y1, x2, y2

Error = Callable[[str], PcaffeError]


def read_label_names(path: str, classes: Sequence[int], error: Error) -> dict[int, str]:
    """Return the names of the labels from a LabelMap's prototxt.

    Raises ``error`` for a label or name that occurs twice, and if one of ``classes`` is missing.
    """
    try:
        names = {label: name for name, label in read_label_map(path, check=True).items()}
    except DataError as failure:
        raise error(f"label_map_file {failure}") from failure
    missing = [str(label) for label in classes if label not in names]
    if missing:
        raise error(f"label_map_file '{path}' has no item for label {', '.join(missing)}")
    return names


class DetectionFiles:
    """Collects detections until all ``num_test_image`` images have had theirs, then writes them.

    ``param`` is a SaveOutputParameter that asks for files of one of FORMATS, ``classes`` has the
    labels but the background.  VOC: a file for each class, lines of image, score, x1, y1, x2, y2 in
    pixels.  ILSVRC: one file, with the label after the image.  COCO: one JSON list.  Existing files
    are replaced.  Raises ``error`` for unusable fields and files.
    """

    def __init__(self, param: caffe_pb2.SaveOutputParameter, classes: Sequence[int], error: Error):
        self._param, self._classes, self._error = param, classes, error
        self._resize = param.resize_param if param.HasField("resize_param") else None
        if self._resize is not None:
            check_resize(self._resize, error)
        self._rows: list[np.ndarray] = []
        self._end = self._next_end = 0
        self._is_open = False

    def open(self) -> None:
        """Read the names of labels and images, and make the folder, unless this is done."""
        if self._is_open:
            return
        param, error = self._param, self._error
        self._labels = read_label_names(param.label_map_file, self._classes, error)
        self._names, self._sizes = read_image_sizes(param.name_size_file, error)
        self._images = param.num_test_image or len(self._names)
        if self._images > len(self._names):
            raise error(
                f"num_test_image {self._images} is more than the {len(self._names)} images of "
                f"name_size_file '{param.name_size_file}'"
            )
        try:
            os.makedirs(param.output_directory, exist_ok=True)
        except OSError as failure:
            raise error(
                f"cannot make output_directory '{param.output_directory}': {failure.strerror}"
            ) from None
        self._is_open = True

    def add(self, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Take over detections (K, 7), whose first column is an index of ``numbers``.

        These number the batch's images in the data set, repeated.
        """
        numbered = rows[rows[:, 1] != -1].astype(np.float64)
        numbered[:, 0] = numbers[numbered[:, 0].astype(int)]
        self._take(numbered, int(numbers[0]), int(numbers[-1]) + 1)

    def _take(self, rows: np.ndarray, first: int, end: int) -> None:
        self.open()
        if not self._next_end:
            self._next_end = (first // self._images + 1) * self._images
        self._rows.append(rows)
        self._end = max(self._end, end)

    def give(self) -> bytes:
        """Return all that is collected, and collect anew: another rank's are to take it."""
        rows, self._rows = np.concatenate([np.empty((0, _COLUMNS)), *self._rows]), []
        return np.array([self._end], float).tobytes() + rows.tobytes()

    def take(self, parts: Sequence[bytes]) -> None:
        """Take over what all ranks' `give` returned, and write what is complete."""
        for part in parts:
            values = np.frombuffer(part)
            rows, end = values[1:].reshape(-1, _COLUMNS), int(values[0])
            self._take(rows, 0, end)
        self.write_complete()

    def write_complete(self) -> None:
        """Write the detections once all images have had theirs."""
        while self._next_end and self._end >= self._next_end:
            rows = np.concatenate(self._rows)
            rows = rows[np.argsort(rows[:, 0], kind="stable")]
            ours = rows[:, 0] < self._next_end
            self._rows, self._next_end = [rows[~ours]], self._next_end + self._images
            self._write(rows[ours])

    def _write(self, rows: np.ndarray) -> None:
        images, labels = rows[:, 0].astype(int) % self._images, rows[:, 1].astype(int)
        scores = rows[:, 2].astype(np.float32)
        boxes = in_pixels(rows[:, 3:].astype(np.float32), self._sizes[images], self._resize)
        boxes[:, 2:] -= boxes[:, :2]
        # Two decimals; halves are rounded up, as in the fork.
        boxes = (np.floor(boxes * np.float32(100) + np.float32(0.5)) / 100).astype(np.float32)
        names = [self._names[image] for image in images]
        if self._param.output_format == "COCO":
            self._write_json(names, labels, scores, boxes)
            return
        corners = boxes.astype(int)  # cut to whole pixels, and so is the size
        corners[:, 2:] += corners[:, :2]
        ends = [
            f"{score:g} {' '.join(map(str, corner))}\n"
            for score, corner in zip(scores, corners.tolist())
        ]
        if self._param.output_format == "ILSVRC":
            lines = [f"{name} {label} {end}" for name, label, end in zip(names, labels, ends)]
            self._save(".txt", "".join(lines))
            return
        for label in self._classes:
            lines = [f"{names[i]} {ends[i]}" for i in np.flatnonzero(labels == label)]
            self._save(f"{self._labels[label]}.txt", "".join(lines))

    def _write_json(
        self, names: list[str], labels: np.ndarray, scores: np.ndarray, boxes: np.ndarray
    ) -> None:
        """Write one object per line; names that are numbers become numbers."""
        rows = zip(names, labels.tolist(), boxes.tolist(), scores)
        objects = [
            {
                "image_id": _number_or_name(name),
                "category_id": _number_or_name(self._labels[label]),
                "bbox": [round(value, 2) for value in box],
                "score": float(f"{score:.9g}"),
            }
            for name, label, box, score in rows
        ]
        lines = ",\n".join(json.dumps(item) for item in objects)
        self._save(".json", f"[\n{lines}\n]\n")

    def _save(self, end: str, content: str) -> None:
        path = Path(self._param.output_directory) / f"{self._param.output_name_prefix}{end}"
        atomic.write(path, [content.encode()])


def _number_or_name(name: str) -> int | str:
    return int(name) if name.removeprefix("-").isdecimal() else name
