"""Images in another size: ``resize_param`` and ``expand_param``, as weiliu89/caffe has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pycaffe_dist.data.image import opencv, with_channels
from pycaffe_dist.errors import DataError, PcaffeError
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2

Size = tuple[int, int]
_Param = caffe_pb2.ResizeParameter
_PADDINGS = {
    _Param.CONSTANT: "BORDER_CONSTANT",
    _Param.MIRRORED: "BORDER_REFLECT_101",
    _Param.REPEAT_NEAREST: "BORDER_REPLICATE",
}


def check_resize(param: caffe_pb2.ResizeParameter, error: Callable[[str], PcaffeError]) -> None:
    """Raise ``error`` unless a ``resize_param`` has the size of the net's input."""
    if not param.height or not param.width:
        raise error(
            f"resize_param needs height and width above 0, found {param.height} and {param.width}"
        )


class Resizing:
    """Resizes images as a ``resize_param`` says.

    WARP gives every image the size; FIT_LARGE_SIZE_AND_PAD keeps the aspect ratio and pads it to
    the size; FIT_SMALL_SIZE keeps the aspect ratio and covers the size.  The interpolation is drawn
    for each image.  Like the fork, it resizes all images, whatever ``prob`` says.  Raises
    DataError.
    """

    def __init__(self, param: caffe_pb2.ResizeParameter):
        self.mode: int = param.resize_mode
        self.wanted: Size = (param.height, param.width)
        check_resize(param, DataError)
        if param.prob != 1:
            logger.warning("resize_param.prob has no effect: all images are resized")
        names = [_Param.Interp_mode.Name(mode) for mode in param.interp_mode] or ["LINEAR"]
        self._interpolations = [f"INTER_{name}" for name in names]
        self._padding = _PADDINGS[param.pad_mode]
        self._pad_values = [float(value) for value in param.pad_value] or [0.0]

    def size(self, size: Size) -> Size:
        """Return the size (height, width) of a resized image."""
        if self.mode != _Param.FIT_SMALL_SIZE:
            return self.wanted
        return self._keeping_aspect(size, np.less)

    def image(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return ``pixels`` (H, W, C) in the other size; ``rng`` draws the interpolation."""
        cv2 = opencv()
        mode = self._interpolations[int(rng.integers(len(self._interpolations)))]
        pads = self.mode == _Param.FIT_LARGE_SIZE_AND_PAD
        old = pixels.shape[:2]
        size = self._keeping_aspect(old, np.greater) if pads else self.size(old)
        resized = cv2.resize(pixels, size[::-1], interpolation=getattr(cv2, mode))
        if not pads:
            return with_channels(resized)
        top, left = ((wanted - got) // 2 for wanted, got in zip(self.wanted, size))
        bottom, right = self.wanted[0] - size[0] - top, self.wanted[1] - size[1] - left
        values, way = self._values(pixels.shape[2]), getattr(cv2, self._padding)
        sides = top, bottom, left, right
        return with_channels(cv2.copyMakeBorder(resized, *sides, borderType=way, value=values))

    def _keeping_aspect(self, size: Size, keeps_width: np.ufunc) -> Size:
        """Return the wanted size with one side changed; ``keeps_width`` compares aspect ratios."""
        height, width = self.wanted
        ratio = np.float32(size[1]) / np.float32(size[0])
        if keeps_width(ratio, np.float32(width) / np.float32(height)):
            return max(1, int(np.float32(width) / ratio)), width
        return height, max(1, int(ratio * np.float32(height)))

    def _values(self, channels: int) -> list[float]:
        if len(self._pad_values) not in (1, channels):
            raise DataError(
                f"resize_param needs 1 pad_value or one for each of {channels} channels, found "
                f"{len(self._pad_values)}"
            )
        return self._pad_values * (channels if len(self._pad_values) == 1 else 1)


class Canvas(NamedTuple):
    """A larger image and the place in it where an image is put."""

    size: Size
    top: int
    left: int

    def frame(self, size: Size) -> np.ndarray:
        """Return the canvas (x1, y1, x2, y2) as fractions of the image of ``size`` in it."""
        height, width = size
        corners = np.array([0, 0, self.size[1], self.size[0]], np.float32)
        corners -= np.array([self.left, self.top] * 2, np.float32)
        return corners / np.array([width, height] * 2, np.float32)


class Expansion:
    """Puts images at random places of larger ones, filled with the mean, by an ``expand_param``.

    Raises DataError.
    """

    def __init__(self, param: caffe_pb2.ExpansionParameter, mean_values: np.ndarray):
        self._share, self._most = param.prob, param.max_expand_ratio
        if not self._most > 1:
            raise DataError(f"expand_param needs a max_expand_ratio above 1, found {self._most:g}")
        self._mean = mean_values

    def draw(self, size: Size, rng: np.random.Generator) -> Canvas | None:
        """Return a canvas for an image of ``size`` (height, width), or None to leave it."""
        if rng.random() > self._share or abs(self._most - 1) < 0.01:
            return None
        ratio = rng.uniform(1, self._most)
        larger = int(size[0] * ratio), int(size[1] * ratio)
        top, left = (math.floor(rng.uniform(0, new - old)) for new, old in zip(larger, size))
        return Canvas(larger, top, left)

    def image(self, pixels: np.ndarray, canvas: Canvas) -> np.ndarray:
        """Return the canvas with ``pixels`` (H, W, C) in it."""
        height, width, channels = pixels.shape
        if self._mean.size not in (0, 1, channels):
            raise DataError(
                f"expand_param needs 1 mean_value or one for each of {channels} channels, found "
                f"{self._mean.size}"
            )
        fill = np.resize(self._mean, channels) if self._mean.size else np.zeros(channels)
        if pixels.dtype == np.uint8:
            fill = np.clip(np.rint(fill), 0, 255)
        bottom = canvas.size[0] - canvas.top - height
        right = canvas.size[1] - canvas.left - width
        sides, cv2 = (canvas.top, bottom, canvas.left, right), opencv()
        way, value = cv2.BORDER_CONSTANT, fill.tolist()
        return with_channels(cv2.copyMakeBorder(pixels, *sides, borderType=way, value=value))
