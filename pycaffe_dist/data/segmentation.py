"""Batches of images and their masks: a label for each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pycaffe_dist.data.datums import Shape
from pycaffe_dist.data.decoders import Decoders
from pycaffe_dist.data.image import read_image, resize
from pycaffe_dist.data.image_list import Line, read_words
from pycaffe_dist.data.images import ImageLoader
from pycaffe_dist.data.order import Order
from pycaffe_dist.data.transformer import Transformer
from pycaffe_dist.errors import DataError
from pycaffe_dist.schema import caffe_pb2

PIXEL, IMAGE, NONE = (
    caffe_pb2.ImageDataParameter.LabelType.Value(name) for name in ("PIXEL", "IMAGE", "NONE")
)
_MOST = 255


class Mask(NamedTuple):
    """The labels of an image's pixels (H, W) uint8, and the size before scaling and padding."""

    labels: np.ndarray
    size: tuple[int, int]


@dataclass(frozen=True)
class MaskOptions:
    """How images and masks are read.

    ``label_type`` says what a line's second word is: PIXEL a mask's file, IMAGE a label for the
    whole image, NONE nothing.  ``size`` (height, width) resizes unless it is (0, 0), the mask by
    ``nearest`` pixels or like the image.  One of the ``scales``, if there are any, is drawn for
    each image.  Images smaller than ``padded`` (height, width) are padded at the bottom and the
    right: images with ``mean``, masks with ``ignored``.  Masks are ``divisor`` times smaller than
    images.  ``binary`` labels are 1 where a mask is 128 or more.  A ``window`` is cut out before
    images are resized.
    """

    root: str
    color: bool
    size: tuple[int, int]
    label_type: int = PIXEL
    ignored: int = _MOST
    nearest: bool = False
    divisor: int = 1
    scales: Sequence[float] = ()
    padded: tuple[int, int] = (0, 0)
    mean: Sequence[float] = ()
    binary: bool = False
    window: bool = False


def read_pairs(file: str, label_type: int, window: bool = False) -> list[Line]:
    """Return the lines of a list of images and masks, with a ``window`` each or without.

    Raises `DataError`.
    """
    more = ", and the window's x1 y1 x2 y2" if window else ""
    if label_type == NONE:
        return read_words(file, 1 + 4 * window, f"the path of an image{more}")
    second = "of its mask" if label_type == PIXEL else "its label"
    expected = f"the path of an image and {second}, without spaces in them{more}"
    return read_words(file, 2 + 4 * window, expected)


class MaskReader:
    """Reads the images of a list and their masks in an order, by ``options``.

    Random scales depend on ``key`` and the image's stream index only.  If ``decoders`` skip bad
    images, the next image takes a bad one's place.
    """

    def __init__(
        self,
        lines: list[Line],
        order: Order,
        options: MaskOptions,
        key: int,
        decoders: Decoders,
    ):
        self.decoders = decoders
        self._lines, self._order = lines, order
        self._options, self._key = options, key

    def read(self, index: int) -> tuple[np.ndarray, Mask]:
        """Return the image (C, H, W) at stream ``index`` and its mask; raises `DataError`."""
        return self.decoders.first_good(self._read, index)

    def describe(self, index: int) -> str:
        """Return the name and place of the image at stream ``index``."""
        line = self._lines[self._order.number(index)]
        return f"{line.place}: image '{self._options.root}{line.words[0]}'"

    def _read(self, index: int) -> tuple[np.ndarray, Mask]:
        options, line = self._options, self._lines[self._order.number(index)]
        try:
            image = read_image(options.root + line.words[0], options.color, *options.size)
            labels = self._labels(line, image.shape[1:])
        except DataError as error:
            raise DataError(f"{line.place}: {error}") from error
        mask = Mask(labels, image.shape[1:])
        return self._padded(*self._scaled(image, mask, index))

    def _labels(self, line: Line, size: tuple[int, int]) -> np.ndarray:
        options = self._options
        if options.label_type == NONE:
            return np.full(size, options.ignored, np.uint8)
        word = line.words[1]
        if options.label_type == IMAGE:
            if not word.isdecimal() or int(word) > _MOST:
                raise DataError(f"expected a label from 0 to {_MOST}, found '{word}'")
            return np.full(size, int(word), np.uint8)
        mask = read_image(options.root + word, False)
        size = size[0] // options.divisor, size[1] // options.divisor
        if all(options.size) and not options.window:
            mask = resize(mask, *size, nearest=options.nearest)
        if mask.shape[1:] != size:
            raise DataError(
                f"mask '{options.root}{word}' should have size {size} (height, width) like its "
                f"image, found {mask.shape[1:]}"
            )
        return (mask[0] > _MOST // 2).astype(np.uint8) if options.binary else mask[0]

    def _scaled(self, image: np.ndarray, mask: Mask, index: int) -> tuple[np.ndarray, Mask]:
        scales = self._options.scales
        if not scales:
            return image, mask
        rng = np.random.default_rng([self._key, index])
        scale = np.float32(scales[int(rng.integers(len(scales)))])
        if scale == 1:
            return image, mask
        size = tuple(max(1, int(np.float32(side) * scale)) for side in image.shape[1:])
        labels = resize(mask.labels[None], *size, nearest=True)[0]
        return resize(image, *size), mask._replace(labels=labels)

    def _padded(self, image: np.ndarray, mask: Mask) -> tuple[np.ndarray, Mask]:
        channels, height, width = image.shape
        size = max(height, self._options.padded[0]), max(width, self._options.padded[1])
        if size == (height, width):
            return image, mask
        # Floats: a mean is rarely a whole number, and what is padded should become exactly zero.
        larger = np.empty((channels, *size))
        larger[...] = np.reshape(self._options.mean or [0.0], (-1, 1, 1))
        larger[:, :height, :width] = image
        labels = np.full(size, self._options.ignored, np.uint8)
        labels[:height, :width] = mask.labels
        return larger, mask._replace(labels=labels)


class WindowMaskReader(MaskReader):
    """Reads windows of images and their masks; a line ends with the window's x1 y1 x2 y2.

    The corners are pixels, both included.  What is outside of the image is 0 in the window, and
    ``ignored`` in its mask.  Windows are resized, their masks by nearest pixels.
    """

    def _read(self, index: int) -> tuple[np.ndarray, Mask]:
        options, line = self._options, self._lines[self._order.number(index)]
        try:
            image = read_image(options.root + line.words[0], options.color)
            size = image.shape[1:]
            labels = self._labels(line, size)
            window = self._window(line)
            image = _cut(image, window, 0)
            labels = _cut(labels[None], window, options.ignored)
            if all(options.size):
                image = resize(image, *options.size)
                labels = resize(labels, *options.size, nearest=True)
        except DataError as error:
            raise DataError(f"{line.place}: {error}") from error
        return self._padded(image, Mask(labels[0], size))

    def _window(self, line: Line) -> tuple[int, int, int, int]:
        first = 1 if self._options.label_type == NONE else 2
        words = line.words[first : first + 4]
        try:
            x1, y1, x2, y2 = map(int, words)
        except ValueError:
            x1 = y1 = x2 = y2 = -1
        if not (x1 <= x2 and y1 <= y2 and x2 >= 0 and y2 >= 0):
            raise DataError(f"expected a window's x1 y1 x2 y2, found {' '.join(words)}")
        return x1, y1, x2, y2


def _cut(image: np.ndarray, window: tuple[int, int, int, int], fill: int) -> np.ndarray:
    """Return a window of ``image`` (C, H, W), filled where it is outside."""
    x1, y1, x2, y2 = window
    part = np.full((len(image), y2 - y1 + 1, x2 - x1 + 1), fill, image.dtype)
    inside = image[:, max(0, y1) : y2 + 1, max(0, x1) : x2 + 1]
    top, left = max(0, -y1), max(0, -x1)
    part[:, top : top + inside.shape[1], left : left + inside.shape[2]] = inside
    return part


class MaskLoader(ImageLoader):
    """Loads batches of images, masks (n, 1, h, w) and, with ``sizes``, image sizes (n, 1, 1, 2).

    ``masks`` transforms masks: it has the transformer's key, so that both are cropped alike.  A
    size is an image's height and width, at most the top's.  Masks are ``divisor`` times smaller.
    """

    def __init__(self, *wanted: Any, masks: Transformer, sizes: bool, divisor: int = 1):
        self._masks, self._sizes, self._divisor = masks, sizes, divisor
        super().__init__(*wanted)

    def _top_shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        n, size = self._batch_size, (shape[1] // self._divisor, shape[2] // self._divisor)
        tops: list[tuple[int, ...]] = [(n, *shape), (n, 1, *size), (n, 1, 1, 2)]
        return tops[: 1 + self._labels + self._sizes]

    def _shape_of(self, image: np.ndarray) -> Shape:
        return self._transformer.output_shape(image.shape)

    def _write_label(self, label: Mask, index: int, at: int, tops: list[np.ndarray]) -> None:
        if self._labels:
            self._masks.image(label.labels[None], index, tops[1][at])
        if self._sizes:
            tops[2][at, 0, 0] = np.minimum(tops[0].shape[2:], label.size)
