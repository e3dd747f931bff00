"""Canvases with handwritten digits at random places, annotated like Pascal VOC's images.

usage: python -m pycaffe_dist.data.canvases MNIST_FOLDER FOLDER [TRAIN_COUNT TEST_COUNT]

FOLDER gets train/ and test/ with the images and their XML files, train.txt and test.txt, which list
them for convert_annoset, and labelmap.prototxt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pycaffe_dist.data.idx import read_pair
from pycaffe_dist.data.image import encode, resize
from pycaffe_dist.data.label_map import BACKGROUND
from pycaffe_dist.errors import DataError, PcaffeError
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.schema.text import to_text

SIDE = 96  # of a canvas
MOST_DIGITS = 4
COUNTS = {"train": 4000, "test": 500}
_FILES = {"train": "train", "test": "t10k"}
_SMALLEST, _LARGEST = 20, 48
# Places that are tried before a digit is left out, since digits do not overlap.
_TRIALS = 30
_DARKEST_DIGIT, _BRIGHTEST_BACKGROUND = 130, 70
# The darkest value of a digit's pixel; its box has no darker ones at its borders.
_INK = 64
_DIGITS = 10


class Object(NamedTuple):
    """A digit on a canvas and its box: xmin, ymin, xmax, ymax in pixels, the last two outside."""

    digit: int
    box: tuple[int, int, int, int]


def draw_canvas(
    images: np.ndarray, labels: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, list[Object]]:
    """Return a canvas (3, SIDE, SIDE) uint8 and the digits on it, at least one.

    ``images`` (n, height, width) uint8 and ``labels`` (n,) are digits to choose from.
    """
    level = rng.integers(_BRIGHTEST_BACKGROUND, size=(3, 1, 1))
    canvas = level + rng.integers(0, 25, (3, SIDE, SIDE))
    objects: list[Object] = []
    for _ in range(int(rng.integers(1, MOST_DIGITS + 1))):
        number = int(rng.integers(len(images)))
        ink = _ink(images[number], int(rng.integers(_SMALLEST, _LARGEST + 1)))
        place = _free_place(ink.shape, objects, rng)
        if place is None:
            continue
        top, left = place
        height, width = ink.shape
        part = canvas[:, top : top + height, left : left + width]
        color = rng.integers(_DARKEST_DIGIT, 256, (3, 1, 1))
        share = ink[None] / 255
        part[...] = part * (1 - share) + color * share
        box = left, top, left + width, top + height
        objects.append(Object(int(labels[number]), box))
    return canvas.astype(np.uint8), objects


def _ink(image: np.ndarray, side: int) -> np.ndarray:
    """Return a digit without its margins, (h, w), so that its longer side has ``side`` pixels."""
    rows, columns = (np.flatnonzero((image >= _INK).any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        raise DataError("a digit has no ink")
    tight = image[None, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    longer = max(tight.shape)
    height, width = (max(1, round(side * pixels / longer)) for pixels in tight.shape[1:])
    return resize(tight, height, width)[0]


def _free_place(
    size: tuple[int, ...], objects: list[Object], rng: np.random.Generator
) -> tuple[int, int] | None:
    """Return the top and left edge of a place where nothing is yet, None if none was found."""
    boxes = np.array([found.box for found in objects]).reshape(-1, 4)
    for _ in range(_TRIALS):
        top, left = (int(rng.integers(SIDE - pixels + 1)) for pixels in size)
        beside = (boxes[:, 2] <= left) | (boxes[:, 0] >= left + size[1])
        if (beside | (boxes[:, 3] <= top) | (boxes[:, 1] >= top + size[0])).all():
            return top, left
    return None


def _annotation(objects: list[Object]) -> str:
    """Return the XML of a canvas."""
    lines = [f"<size><width>{SIDE}</width><height>{SIDE}</height><depth>3</depth></size>"]
    for digit, box in objects:
        corners = zip(("xmin", "ymin", "xmax", "ymax"), box)
        bounds = "".join(f"<{name}>{value}</{name}>" for name, value in corners)
        lines.append(
            f"<object><name>{digit}</name><difficult>0</difficult><bndbox>{bounds}</bndbox></object>"
        )
    return "\n".join(["<annotation>", *lines, "</annotation>", ""])


def write_canvases(mnist: str, folder: str, counts: dict[str, int] | None = None) -> None:
    """Write canvases of the digits in the folder ``mnist``, always the same; raises DataError.

    ``counts`` has the number of canvases for "train" and "test".
    """
    root = Path(folder)
    for seed, (part, count) in enumerate((counts or COUNTS).items()):
        files = os.path.join(mnist, _FILES[part])
        images, labels = read_pair(f"{files}-images-idx3-ubyte", f"{files}-labels-idx1-ubyte")
        rng = np.random.default_rng(seed)
        lines = []
        try:
            (root / part).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                canvas, objects = draw_canvas(images, labels, rng)
                name = f"{part}/{number:06d}"
                (root / f"{name}.png").write_bytes(encode(canvas, "png"))
                (root / f"{name}.xml").write_text(_annotation(objects))
                lines.append(f"{name}.png {name}.xml\n")
            (root / f"{part}.txt").write_text("".join(lines))
        except OSError as error:
            raise DataError(f"cannot write canvases to '{folder}': {error.strerror}") from error
    names = [BACKGROUND, *((str(digit), str(digit)) for digit in range(_DIGITS))]
    label_map = caffe_pb2.LabelMap()
    for label, (name, shown) in enumerate(names):
        label_map.item.add(name=name, label=label, display_name=shown)
    (root / "labelmap.prototxt").write_text(to_text(label_map))


def main(args: list[str]) -> Any:
    """Run the program; return the argument for `sys.exit`."""
    if len(args) not in (2, 4) or not all(count.isdecimal() for count in args[2:]):
        return __doc__
    counts = dict(zip(COUNTS, map(int, args[2:]))) or COUNTS
    try:
        write_canvases(args[0], args[1], counts)
    except PcaffeError as error:
        return str(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
