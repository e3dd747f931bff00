"""Databases of AnnotatedDatums from image files and their annotations, as by SSD's tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pycaffe_dist.data.annotation_files import add_boxes, read_boxes
from pycaffe_dist.data.image_list import read_list, read_words
from pycaffe_dist.data.imageset import AnnotationError, Conversion
from pycaffe_dist.errors import DataError
from pycaffe_dist.schema import caffe_pb2


@dataclass(frozen=True)
class Item:
    """An image's path, its label or its annotation's path, and its place in the list."""

    path: str
    label: int
    annotation: str
    place: str


def read_items(file: str, detection: bool) -> list[Item]:
    """Return a list's lines: paths of an image and, with ``detection``, its annotation or a label.

    Raises DataError.
    """
    if not detection:
        images = read_list(file)
        return [Item(path, label, "", file) for path, label in zip(images.paths, images.labels)]
    expected = "the paths of an image and of its annotation, without spaces in them"
    items = []
    for line in read_words(file, 2, expected):
        if len(line.words) > 2:
            raise DataError(f"{line.place}: expected {expected}, found '{line.text[:80]}'")
        items.append(Item(line.words[0], -1, line.words[1], line.place))
    return items


@dataclass(frozen=True)
class AnnotatedConversion:
    """Converts images and annotations below ``root`` to AnnotatedDatums.

    ``kind`` ("xml", "json", "txt") and ``labels`` are for `read_boxes`.
    """

    conversion: Conversion
    root: str
    kind: str
    labels: Mapping[str, int] = field(default_factory=dict)

    def record(self, item: Item) -> tuple[bytes, int]:
        """Return the serialized record and the number of values in its image; raises DataError."""
        try:
            datum, shape, size = self.conversion.message(self.root + item.path, item.label)
        except DataError as error:
            raise DataError(f"{item.place}: {error}") from error
        datum.channels, datum.height, datum.width = shape
        record = caffe_pb2.AnnotatedDatum(datum=datum)
        if item.annotation:
            record.type = caffe_pb2.AnnotatedDatum.BBOX
            file = self.root + item.annotation
            try:
                add_boxes(record, read_boxes(file, self.kind, self.labels), size, file)
            except AnnotationError as error:
                raise AnnotationError(f"{item.place}: {error}") from error
        return record.SerializeToString(), shape[0] * shape[1] * shape[2]
