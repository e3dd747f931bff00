"""Crops of several sizes at chosen places, and mirrored flow, as yjxiong/caffe has them."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.data.image import opencv, with_channels
from pycaffe_dist.errors import DataError
from pycaffe_dist.schema import caffe_pb2

_RATIOS = (1.0, 0.875, 0.75, 0.66)
# A crop's side that is this near to the wanted one is the wanted one.
_NEAR = 3
# Places of crops, in quarters of the free height and width.
_FIVE = ((0, 0), (0, 4), (4, 0), (4, 4), (2, 2))
_THIRTEEN = (*_FIVE, (0, 2), (4, 2), (2, 0), (2, 4), (1, 1), (1, 3), (3, 1), (3, 3))


class ScaleCrops:
    """Crops an image in training by a ``transform_param``, to ``crop`` (height, width).

    With ``multi_scale`` a crop's sides are ratios of the image's shorter side, and the crop is
    resized; with ``fix_crop`` it is at one of five places, or, with ``more_fix_crop``, of thirteen.
    If ``is_flow`` is set, every other channel of a mirrored image, from the first on, is inverted.
    Raises DataError.
    """

    def __init__(
        self,
        param: caffe_pb2.TransformationParameter,
        crop: tuple[int, int] | None,
        train: bool,
    ):
        self._crop, self._flow, self._distortion = crop, param.is_flow, param.max_distort
        self._crops = train and (param.multi_scale or param.fix_crop)
        if (param.multi_scale or param.fix_crop) and crop is None:
            raise DataError("transform_param's multi_scale and fix_crop need a crop_size")
        self._places = (_THIRTEEN if param.more_fix_crop else _FIVE) if param.fix_crop else ()
        ratios = (list(param.scale_ratios) or _RATIOS) if param.multi_scale else ()
        if not all(0 < ratio <= 1 for ratio in ratios):
            raise DataError("transform_param.scale_ratios must be above 0 and at most 1")
        self._ratios = np.array(ratios, np.float32)

    def image(self, pixels: np.ndarray, mirrored: bool, rng: np.random.Generator) -> np.ndarray:
        """Return ``pixels`` (H, W, C) cropped, and inverted if they will be mirrored."""
        if self._crops and self._crop is not None:
            pixels = self._cropped(pixels, self._crop, rng)
        if self._flow and mirrored:
            pixels = pixels.copy()
            pixels[:, :, ::2] = 255 - pixels[:, :, ::2]
        return pixels

    def _cropped(
        self, pixels: np.ndarray, crop: tuple[int, int], rng: np.random.Generator
    ) -> np.ndarray:
        free_size = pixels.shape[:2]
        height, width = self._size(free_size, crop, rng)
        free = free_size[0] - height, free_size[1] - width
        if min(free) < 0:
            raise DataError(
                f"crop_size {crop[0]} is larger than the image, which is {free_size[0]} high and "
                f"{free_size[1]} wide"
            )
        if self._places:
            rows, columns = self._places[int(rng.integers(len(self._places)))]
            top, left = free[0] // 4 * rows, free[1] // 4 * columns
        else:
            top, left = (int(rng.integers(side + 1)) for side in free)
        part = np.ascontiguousarray(pixels[top : top + height, left : left + width])
        if (height, width) == crop:
            return part
        return with_channels(opencv().resize(part, crop[::-1]))

    def _size(
        self, size: tuple[int, int], crop: tuple[int, int], rng: np.random.Generator
    ) -> tuple[int, int]:
        """Return the height and width of a crop of an image of ``size``."""
        if not self._ratios.size:
            return crop
        sides = (np.float32(min(size)) * self._ratios).astype(int)
        pairs = [
            (i, k)
            for i in range(len(sides))
            for k in range(len(sides))
            if abs(i - k) <= self._distortion
        ]
        i, k = pairs[int(rng.integers(len(pairs)))]
        near = [max(1, int(side)) for side in (sides[i], sides[k])]
        height, width = (
            min(wanted, whole) if abs(side - wanted) < _NEAR else side
            for side, wanted, whole in zip(near, crop, size)
        )
        return height, width
