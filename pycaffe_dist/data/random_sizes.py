"""Images of random sizes, and random parts of images, as intel/caffe and NVIDIA/caffe have them."""

from __future__ import annotations

import math

import numpy as np

from pycaffe_dist.data.image import opencv, with_channels
from pycaffe_dist.data.resizing import Resizing
from pycaffe_dist.errors import DataError
from pycaffe_dist.schema import caffe_pb2

# The fork draws ratios in steps of this.
_STEP = 0.001


def _resized(
    pixels: np.ndarray,
    size: tuple[int, int],
    resize: caffe_pb2.ResizeParameter,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return ``pixels`` (H, W, C) in a size (height, width), with a ResizeParameter's ways."""
    param = caffe_pb2.ResizeParameter()
    param.CopyFrom(resize)
    param.height, param.width = size
    return Resizing(param).image(pixels, rng)


def _with_shorter(size: tuple[int, ...], shorter: int) -> tuple[int, int]:
    """Return a size (height, width) of the same aspect ratio whose shorter side is ``shorter``."""
    height, width = size[:2]
    longer = int(max(height, width) / min(height, width) * shorter)
    return (shorter, longer) if height < width else (longer, shorter)


class RandomSize:
    """Resizes images so that the shorter side is random: from min_size to max_size.

    0 stands for the image's shorter and longer side.  Raises DataError.
    """

    def __init__(self, param: caffe_pb2.RandomResizeParameter):
        self._param = param
        if param.max_size and param.max_size < param.min_size:
            raise DataError(
                f"random_resize_param has max_size {param.max_size} below min_size {param.min_size}"
            )

    def image(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return ``pixels`` (H, W, C) in another size."""
        least = self._param.min_size or min(pixels.shape[:2])
        most = self._param.max_size or max(pixels.shape[:2])
        if most < least:
            raise DataError(f"random_resize_param has no size from {least} to {most}")
        size = _with_shorter(pixels.shape, int(rng.integers(least, most + 1)))
        return _resized(pixels, size, self._param.resize_param, rng)


class RandomArea:
    """Cuts out a part of a random area and aspect ratio, and resizes it to ``crop``.

    If no part of ``max_attempt`` fits, the shorter side becomes the crop's.  Raises DataError.
    """

    def __init__(self, param: caffe_pb2.RandomAspectRatioParameter, crop: tuple[int, int] | None):
        if crop is None or crop[0] != crop[1]:
            raise DataError("random_aspect_ratio_param needs a crop_size")
        if not 0 < param.min_area_ratio <= param.max_area_ratio <= 1:
            raise DataError(
                "random_aspect_ratio_param needs 0 < min_area_ratio <= max_area_ratio <= 1, found "
                f"{param.min_area_ratio:g} and {param.max_area_ratio:g}"
            )
        if not 0 < param.aspect_ratio_change <= 1:
            raise DataError(
                "random_aspect_ratio_param needs aspect_ratio_change above 0 and at most 1, found "
                f"{param.aspect_ratio_change:g}"
            )
        self._param, self._side = param, crop[0]

    def image(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a part of ``pixels`` (H, W, C), or all, in another size."""
        param, (height, width) = self._param, pixels.shape[:2]
        change, resize = param.aspect_ratio_change, param.resize_param
        for _ in range(param.max_attempt):
            side = math.sqrt(
                height * width * _ratio(param.min_area_ratio, param.max_area_ratio, rng)
            )
            stretch = _ratio(change, 1 / change, rng)
            part = max(1, int(side * stretch)), max(1, int(side / stretch))
            if rng.random() < 0.5:
                part = part[::-1]
            if part[0] <= height and part[1] <= width:
                top = int(rng.integers(height - part[0] + 1))
                left = int(rng.integers(width - part[1] + 1))
                piece = np.ascontiguousarray(pixels[top : top + part[0], left : left + part[1]])
                return _resized(piece, (self._side, self._side), resize, rng)
        return _resized(pixels, _with_shorter(pixels.shape, self._side), resize, rng)


class StretchedSize:
    """Resizes images so that the shorter side is random, and stretches them (NVIDIA/caffe).

    The shorter side is from img_rand_resize_lower to img_rand_resize_upper.  Then the longer side
    becomes a ratio of it, if there are ratios above 1, and both sides are stretched.  Sides are at
    least the crop's, and without allow_upscale at most the image's.  Raises DataError.
    """

    FIELDS = (
        *("img_rand_resize_lower", "img_rand_resize_upper"),
        *("rand_resize_ratio_lower", "rand_resize_ratio_upper"),
        *("vertical_stretch_lower", "vertical_stretch_upper"),
        *("horizontal_stretch_lower", "horizontal_stretch_upper"),
    )

    def __init__(self, param: caffe_pb2.TransformationParameter):
        self._param = param
        for name in (
            "img_rand_resize",
            "rand_resize_ratio",
            "vertical_stretch",
            "horizontal_stretch",
        ):
            low, high = getattr(param, f"{name}_lower"), getattr(param, f"{name}_upper")
            if low > high:
                raise DataError(
                    f"transform_param has {name}_upper {high:g} below {low:g}, its lower"
                )

    def image(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return ``pixels`` (H, W, C) in another size."""
        old, param, cv2 = pixels.shape[:2], self._param, opencv()
        least = param.crop_size
        sides = [max(least, int(side + 0.5)) for side in self._sides(old, rng)]
        if not param.allow_upscale:
            sides = [min(side, size) for side, size in zip(sides, old)]
        if tuple(sides) == old:
            return pixels
        smaller = sides[0] <= old[0] and sides[1] <= old[1]
        algorithm = param.interpolation_algo_down if smaller else param.interpolation_algo_up
        way = getattr(cv2, param.InterpolationAlgo.Name(algorithm))
        return with_channels(cv2.resize(pixels, sides[::-1], interpolation=way))

    def _sides(self, size: tuple[int, ...], rng: np.random.Generator) -> list[float]:
        """Return the height and width that are drawn for an image of ``size``."""
        param, shorter = self._param, min(size)
        side = shorter
        if param.img_rand_resize_lower and param.img_rand_resize_upper:
            side = int(rng.integers(param.img_rand_resize_lower, param.img_rand_resize_upper + 1))
        sides = [side / shorter * length for length in size]
        if param.rand_resize_ratio_lower >= 1 and param.rand_resize_ratio_upper > 1:
            ratio = rng.uniform(param.rand_resize_ratio_lower, param.rand_resize_ratio_upper)
            longer = int(np.argmax(sides)) if size[0] != size[1] else int(rng.integers(2))
            sides[longer] = sides[1 - longer] * ratio
        for axis, name in enumerate(("vertical_stretch", "horizontal_stretch")):
            low, high = getattr(param, f"{name}_lower"), getattr(param, f"{name}_upper")
            if low > 0 and high > 0:
                sides[axis] *= rng.uniform(low, high)
        return sides


def _ratio(least: float, most: float, rng: np.random.Generator) -> float:
    return least + _STEP * int(rng.integers(int((most - least) / _STEP) + 1))
