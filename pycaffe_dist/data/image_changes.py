"""Changes of whole images, made before they are cropped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from pycaffe_dist.data.colors import Distortion, Noise
from pycaffe_dist.data.image import opencv
from pycaffe_dist.data.random_sizes import RandomArea, RandomSize, StretchedSize
from pycaffe_dist.data.resizing import Expansion, Resizing
from pycaffe_dist.data.scale_crops import ScaleCrops
from pycaffe_dist.errors import DataError
from pycaffe_dist.kernels.transform import is_mirrored
from pycaffe_dist.schema import caffe_pb2


class ImageChanges:
    """Distorts, expands, resizes, degrades and crops images, in this order.

    Resizing is ``resize_param``'s; random sizes and areas come after the degradation.

    A ``transform_param`` says how.  The random choices for an image depend on ``key`` and its index
    only.  ``mean_values`` fills what an expanded image adds; ``crop`` is the transformer's.
    (weiliu89/caffe distorts and expands for AnnotatedData alone, and changes encoded images only.)
    Raises `DataError` when parameters contradict each other.
    """

    def __init__(
        self,
        param: caffe_pb2.TransformationParameter,
        key: int,
        mean_values: np.ndarray,
        crop: tuple[int, int] | None,
        train: bool,
    ):
        self._key, self._mirror = np.uint64(key), bool(param.mirror)

        def made(name: str, kind: Any, *wanted: Any) -> Any:
            return kind(getattr(param, name), *wanted) if param.HasField(name) else None

        self.distortion: Distortion | None = made("distort_param", Distortion)
        self.expansion: Expansion | None = made("expand_param", Expansion, mean_values)
        self.resizing: Resizing | None = made("resize_param", Resizing)
        self.noise: Noise | None = made("noise_param", Noise)
        self.areas: RandomSize | RandomArea | StretchedSize | None = made(
            "random_resize_param", RandomSize
        )
        if self.areas is None:
            self.areas = made("random_aspect_ratio_param", RandomArea, crop)
        if self.areas is None and any(map(param.HasField, StretchedSize.FIELDS)):
            self.areas = StretchedSize(param)
        special = param.fix_crop or param.multi_scale or param.is_flow
        self.crops = ScaleCrops(param, crop, train) if special else None
        if self.expansion is not None and param.HasField("mean_file"):
            raise DataError("expand_param fills with mean_value; it cannot be used with mean_file")

    def __bool__(self) -> bool:
        own = self.distortion, self.expansion, self.resizing, self.noise, self.areas, self.crops
        return any(own)

    def rng(self, index: int) -> np.random.Generator:
        """Return the random numbers for the image with this stream index."""
        return np.random.default_rng([int(self._key), index])

    def image(self, image: np.ndarray, index: int) -> np.ndarray:
        """Return ``image`` (C, H, W) with all changes; raises `DataError`."""
        rng = self.rng(index)
        pixels = np.ascontiguousarray(image.transpose(1, 2, 0))
        with plain_opencv():
            if self.distortion is not None:
                pixels = self.distortion.image(pixels, rng)
            if self.expansion is not None:
                canvas = self.expansion.draw(pixels.shape[:2], rng)
                pixels = pixels if canvas is None else self.expansion.image(pixels, canvas)
            pixels = self.finished(pixels, rng)
            if self.areas is not None:
                pixels = self.areas.image(pixels, rng)
            if self.crops is not None:
                pixels = self.crops.image(pixels, is_mirrored(self._key, index, self._mirror), rng)
        return pixels.transpose(2, 0, 1)

    def finished(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return ``pixels`` (H, W, C) resized and degraded."""
        if self.resizing is not None:
            pixels = self.resizing.image(pixels, rng)
        return pixels if self.noise is None else self.noise.image(pixels, rng)


@contextlib.contextmanager
def plain_opencv() -> Iterator[None]:
    """Let OpenCV compute by its own code, and raise its errors as `DataError`.

    The results of Intel's library in it, which is switched off per thread, differ by one in places.
    """
    cv2 = opencv()
    cv2.ipp.setUseIPP(False)
    try:
        yield
    except cv2.error as error:
        raise DataError(f"OpenCV cannot change the image: {error.err}") from error
