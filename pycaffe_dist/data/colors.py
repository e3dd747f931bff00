"""Changes of images' colors: ``distort_param`` and ``noise_param``.

They are weiliu89/caffe's, or jolibrain/caffe's, which draws every change with one ``prob``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pycaffe_dist.data.image import decoded, opencv, with_channels
from pycaffe_dist.errors import DataError
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2

_LEVELS = np.arange(256, dtype=np.float32)
_HUE, _SATURATION = 0, 1
# Gaussian blur's window and deviation, the limit of local contrast, and the levels of a posterized
# image are 64 apart.
_BLUR, _DEVIATION, _CLIP_LIMIT, _POSTER_STEP = (7, 7), 1.5, 4.0, 64
_CHANGES = ("brightness", "contrast", "saturation", "hue", "random_order")
# What noise_param can do besides a JPEG.
_EFFECTS = (
    *("decolorize", "gauss_blur", "hist_eq", "clahe", "erode", "posterize", "inverse"),
    *("saltpepper", "convert_to_hsv", "convert_to_lab"),
)


def _table(factor: float, offset: float) -> np.ndarray:
    """Return the 256 bytes of a linear function, rounded and clipped."""
    return np.clip(np.rint(_LEVELS * np.float32(factor) + np.float32(offset)), 0, 255).astype("u1")


def _changed_hsv(pixels: np.ndarray, channel: int, table: np.ndarray) -> np.ndarray:
    """Return ``pixels`` with ``table`` applied to their hue or saturation."""
    cv2 = opencv()
    tables = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    tables[0, :, channel] = table
    other = cv2.LUT(cv2.cvtColor(pixels, cv2.COLOR_BGR2HSV), tables)
    return cv2.cvtColor(other, cv2.COLOR_HSV2BGR)


class Distortion:
    """Changes colors at random, by a ``distort_param``.

    Brightness changes first; contrast before or after saturation and hue; channels change places
    last.  Each change has its probability, or ``prob`` if it is asked for by its own name or by
    ``all_effects`` (jolibrain/caffe).  Raises DataError.
    """

    def __init__(self, param: caffe_pb2.DistortionParameter):
        self._param, self._chance = param, _chances(param)
        for name in ("brightness_delta", "hue_delta", "contrast_lower", "saturation_lower"):
            if not getattr(param, name) >= 0:
                found = getattr(param, name)
                raise DataError(f"distort_param.{name} must not be negative, found {found:g}")
        for name in ("contrast", "saturation"):
            low, high = getattr(param, f"{name}_lower"), getattr(param, f"{name}_upper")
            if not low <= high:
                raise DataError(
                    f"distort_param.{name}_upper must be at least {name}_lower, {low:g}, found "
                    f"{high:g}"
                )

    def image(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return ``pixels`` (H, W, 3) of bytes with changes that ``rng`` draws."""
        if pixels.dtype != np.uint8 or pixels.shape[2] != 3:
            raise DataError(
                f"distort_param needs color images of bytes, found {pixels.shape[2]} channel(s) of "
                f"{pixels.dtype}"
            )
        color = [self._saturation, self._hue]
        inner = [self._contrast, *color] if rng.random() > 0.5 else [*color, self._contrast]
        for change in (self._brightness, *inner, self._order):
            pixels = change(pixels, rng)
        return pixels

    def _brightness(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        param = self._param
        if rng.random() >= self._chance["brightness"]:
            return pixels
        delta = rng.uniform(-param.brightness_delta, param.brightness_delta)
        return opencv().LUT(pixels, _table(1, delta))

    def _contrast(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        param = self._param
        if rng.random() >= self._chance["contrast"]:
            return pixels
        return opencv().LUT(pixels, _table(_factor(rng, param, "contrast"), 0))

    def _saturation(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        param = self._param
        if rng.random() >= self._chance["saturation"]:
            return pixels
        table = _table(_factor(rng, param, "saturation"), 0)
        return _changed_hsv(pixels, _SATURATION, table)

    def _hue(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        param = self._param
        if rng.random() >= self._chance["hue"]:
            return pixels
        delta = rng.uniform(-param.hue_delta, param.hue_delta)
        return _changed_hsv(pixels, _HUE, _table(1, delta))

    def _order(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if rng.random() >= self._chance["random_order"]:
            return pixels
        return np.ascontiguousarray(pixels[:, :, rng.permutation(3)])


def _chances(param: caffe_pb2.DistortionParameter) -> dict[str, float]:
    """Return the probability of each change."""
    named = [name for name in ("prob", *_CHANGES, "all_effects") if param.HasField(name)]
    if not named:
        return {name: getattr(param, f"{name}_prob") for name in _CHANGES}
    own = [f"{name}_prob" for name in _CHANGES if param.HasField(f"{name}_prob")]
    if own:
        raise DataError(
            f"distort_param takes {named[0]} or {own[0]}, not both: they are of different forks"
        )
    wanted = {name: param.all_effects or getattr(param, name) for name in _CHANGES}
    return {name: param.prob if wanted[name] else 0.0 for name in _CHANGES}


def _factor(rng: np.random.Generator, param: caffe_pb2.DistortionParameter, name: str) -> float:
    return rng.uniform(getattr(param, f"{name}_lower"), getattr(param, f"{name}_upper"))


class Noise:
    """Degrades images by a ``noise_param``, in the fork's order.

    Like weiliu89/caffe, it changes all images, whatever ``prob`` says, and refuses
    ``convert_to_lab``: that fork then reads the bytes of floats as pixels.  ``all_effects``, true
    or false, stands for jolibrain/caffe, which draws every effect with ``prob``; as there,
    decolorize then does nothing, and a JPEG is not drawn.  Raises DataError.
    """

    def __init__(self, param: caffe_pb2.NoiseParameter):
        self._param, self._drawn = param, param.HasField("all_effects")
        self._values = np.array(param.saltpepper_param.value, np.float32)
        self._effects = [n for n in _EFFECTS if getattr(param, n) or param.all_effects]
        if self._drawn:
            if param.decolorize:
                logger.warning("noise_param.decolorize has no effect beside all_effects")
            salted = self._values.size or param.saltpepper
            left_out = ("decolorize",) if salted else ("decolorize", "saltpepper")
            self._effects = [n for n in self._effects if n not in left_out]
        elif param.convert_to_lab:
            raise DataError(
                "noise_param.convert_to_lab is refused: the fork (weiliu89/caffe) misreads the "
                "result; convert the images beforehand"
            )
        elif param.HasField("prob") and param.prob != 1:
            logger.warning("noise_param.prob has no effect: all images are changed")
        if param.saltpepper and not self._values.size:
            raise DataError("noise_param.saltpepper needs saltpepper_param with a value")

    def image(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return ``pixels`` (H, W, C) of bytes, changed.

        ``rng`` draws the effects, if they are drawn, and salt and pepper's places.
        """
        param, color = self._param, pixels.shape[2] == 3
        if pixels.dtype != np.uint8 or not (color or pixels.shape[2] == 1):
            raise DataError(
                f"noise_param needs images of bytes with 1 or 3 channels, found "
                f"{pixels.shape[2]} of {pixels.dtype}"
            )
        effects = set(self._effects)
        if self._drawn:
            effects = {name for name in self._effects if rng.random() < param.prob}
            effects -= set() if color else {"convert_to_hsv", "convert_to_lab"}
        elif not color and effects & {"decolorize", "convert_to_hsv"}:
            raise DataError("noise_param.decolorize and convert_to_hsv need color images")
        cv2 = opencv()
        if "decolorize" in effects:
            gray = cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
            pixels = cv2.cvtColor(gray, cv2.COLOR_GRAY2BGR)
        if "gauss_blur" in effects:
            pixels = with_channels(cv2.GaussianBlur(pixels, _BLUR, _DEVIATION))
        if "hist_eq" in effects:
            pixels = _equalized(pixels, cv2.equalizeHist)
        if "clahe" in effects:
            pixels = _equalized(pixels, cv2.createCLAHE(_CLIP_LIMIT).apply)
        if param.jpeg > 0 and (color or not self._drawn):
            pixels = through_jpeg(pixels, int(param.jpeg))
        return self._last_effects(pixels, effects, rng)

    def _last_effects(
        self, pixels: np.ndarray, effects: set[str], rng: np.random.Generator
    ) -> np.ndarray:
        cv2 = opencv()
        if "erode" in effects:
            element = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (3, 3))
            pixels = with_channels(cv2.erode(pixels, element))
        if "posterize" in effects:
            levels = np.arange(256) // _POSTER_STEP * _POSTER_STEP + _POSTER_STEP // 2
            pixels = with_channels(cv2.LUT(pixels, levels.astype(np.uint8)))
        if "inverse" in effects:
            pixels = ~pixels
        if "saltpepper" in effects:
            pixels = self._salted(pixels, rng)
        if "convert_to_hsv" in effects:
            pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2HSV)
        if "convert_to_lab" in effects:
            lab = cv2.cvtColor(pixels * np.float32(1 / 255), cv2.COLOR_BGR2Lab)
            pixels = np.clip(np.rint(lab), 0, 255).astype(np.uint8)
        return pixels

    def _salted(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        height, width, channels = pixels.shape
        if self._values.size not in (1, channels):
            raise DataError(
                f"saltpepper_param needs 1 value or one for each of {channels} channels, found "
                f"{self._values.size}"
            )
        count = max(0, int(self._param.saltpepper_param.fraction * height * width))
        salted = pixels.copy()
        places = rng.integers(height, size=count), rng.integers(width, size=count)
        salted[places] = np.clip(self._values, 0, 255)
        return salted


def through_jpeg(pixels: np.ndarray, quality: int = 95) -> np.ndarray:
    """Return ``pixels`` (H, W, C) as a JPEG file of them has them."""
    cv2 = opencv()
    _, file = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])
    image = decoded(file.reshape(-1), color=pixels.shape[2] > 1)
    assert image is not None
    return with_channels(image)


def _equalized(pixels: np.ndarray, equalize: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return ``pixels`` with ``equalize`` applied to their brightness."""
    if pixels.shape[2] == 1:
        return equalize(pixels[:, :, 0])[:, :, None]
    cv2 = opencv()
    other = cv2.cvtColor(pixels, cv2.COLOR_BGR2YCrCb)
    other[:, :, 0] = equalize(np.ascontiguousarray(other[:, :, 0]))
    return cv2.cvtColor(other, cv2.COLOR_YCrCb2BGR)
