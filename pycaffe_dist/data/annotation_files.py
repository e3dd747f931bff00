"""Files with the boxes of an image: Pascal VOC's XML, COCO's JSON, and lines of numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from xml.etree import ElementTree

from pycaffe_dist.data.imageset import AnnotationError
from pycaffe_dist.errors import did_you_mean
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2

_CORNERS = ("xmin", "ymin", "xmax", "ymax")
# The limit on labels, which are 32-bit numbers, sides and corners.
_MOST = 2**31
# What other JSON than expected may cause.
_JSON_ERRORS = (
    AttributeError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


class Box(NamedTuple):
    """A label, whether it is difficult, and xmin, ymin, xmax, ymax in pixels."""

    label: int
    difficult: bool
    corners: tuple[float, ...]


class Boxes(NamedTuple):
    """The boxes of an image and its size (height, width), None where the file does not say it."""

    boxes: list[Box]
    size: tuple[int, int] | None


class _Labels(NamedTuple):
    file: str
    labels: Mapping[str, int]

    def of(self, name: str) -> int:
        if name not in self.labels:
            hint = did_you_mean(name, self.labels)
            raise AnnotationError(f"{self.file}: label '{name}' is not in the label map{hint}")
        return self.labels[name]


def _numbers(file: str, values: list[Any], what: str) -> tuple[float, ...]:
    """Return values as numbers within the limit."""
    try:
        found = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        found = ()
    if len(found) != len(_CORNERS) or not all(abs(value) < _MOST for value in found):
        raise AnnotationError(f"{file}: {what} needs four numbers, found {str(values)[:80]}")
    return found


def _size(height: Any, width: Any) -> tuple[int, int] | None:
    try:
        size = int(height), int(width)
    except (TypeError, ValueError, OverflowError):
        return None
    return size if max(size) < _MOST else None


def _read_xml(file: str, data: bytes, labels: _Labels) -> Boxes:
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise AnnotationError(f"{file}: this is not XML: {error}") from error
    boxes = []
    for number, item in enumerate(root.findall("object")):
        name, bounds = item.findtext("name"), item.find("bndbox")
        if name is None or bounds is None:
            raise AnnotationError(f"{file}: object {number} needs a name and a bndbox")
        corners = [bounds.findtext(corner) for corner in _CORNERS]
        difficult = (item.findtext("difficult") or "").strip() == "1"
        what = f"the bndbox of object {number}"
        boxes.append(Box(labels.of(name.strip()), difficult, _numbers(file, corners, what)))
    return Boxes(boxes, _size(root.findtext("size/height"), root.findtext("size/width")))


def _read_json(file: str, data: bytes, labels: _Labels) -> Boxes:
    try:
        root = json.loads(data)
        items, image = root["annotation"], root.get("image", {})
        boxes = []
        for number, item in enumerate(items):
            found = _numbers(file, list(item["bbox"]), f"the bbox of annotation {number}")
            x, y, width, height = found
            label = labels.of(str(item["category_id"]))
            crowd = bool(int(item.get("iscrowd", 0)))
            boxes.append(Box(label, crowd, (x, y, x + width, y + height)))
        return Boxes(boxes, _size(image.get("height"), image.get("width")))
    except _JSON_ERRORS as error:
        what = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise AnnotationError(
            f"{file}: expected JSON with annotations, each a bbox and a category_id: {what}"
        ) from error


def _read_txt(file: str, data: bytes, _: _Labels) -> Boxes:
    boxes = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        words = line.split()
        if not words:
            continue
        place = f"{file}:{number}"
        try:
            label = int(words[0])
        except ValueError:
            label = _MOST
        if not -_MOST <= label < _MOST:
            raise AnnotationError(f"{place}: '{words[0][:40]}' is not a label's number")
        boxes.append(Box(label, False, _numbers(place, words[1:], "a box")))
    return Boxes(boxes, None)


_READERS: dict[str, Callable[[str, bytes, _Labels], Boxes]] = {
    "xml": _read_xml,
    "json": _read_json,
    "txt": _read_txt,
}
KINDS = tuple(_READERS)


def read_boxes(file: str, kind: str, labels: Mapping[str, int]) -> Boxes:
    """Return the boxes in a file of ``kind`` ("xml", "json", "txt").

    ``labels`` has the numbers of the labels' names; those in a txt are numbers already.  Raises
    `AnnotationError`, which names the file.
    """
    try:
        with open(file, "rb") as opened:
            data = opened.read()
    except OSError as error:
        raise AnnotationError(f"cannot read annotation '{file}': {error.strerror}") from error
    return _READERS[kind](file, data, _Labels(file, labels))


def add_boxes(
    record: caffe_pb2.AnnotatedDatum, found: Boxes, size: tuple[int, int], file: str
) -> None:
    """Add boxes to a record, grouped by label in the order of their first box.

    Corners become fractions of the size that the annotation says or else of the image's ``size``
    (height, width).  Instances of a label are counted from 0.  Odd boxes are logged.
    """
    height, width = found.size or size
    if found.size is not None and found.size != size:
        logger.warning("%s: says size %s (height, width), its image has %s", file, found.size, size)
    if height < 1 or width < 1:
        raise AnnotationError(f"{file}: the image's height and width must be above 0")
    groups = {}
    odd = False
    for label, difficult, corners in found.boxes:
        if label not in groups:
            groups[label] = record.annotation_group.add(group_label=label)
        group = groups[label]
        x1, y1, x2, y2 = corners
        odd |= not (0 <= x1 <= x2 <= width and 0 <= y1 <= y2 <= height)
        box = group.annotation.add(instance_id=len(group.annotation)).bbox
        box.xmin, box.ymin, box.xmax, box.ymax = x1 / width, y1 / height, x2 / width, y2 / height
        box.difficult = difficult
    if odd:
        logger.warning("%s: a box reaches beyond the image or has its corners exchanged", file)
