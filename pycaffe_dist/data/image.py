"""Image files, read with OpenCV as Caffe reads them: blue, green, red."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pycaffe_dist import limits
from pycaffe_dist.data.jpeg import plain_jpeg_channels
from pycaffe_dist.errors import DataError

_BYTES = np.dtype(np.uint8)
_OPENCVS_LIMIT = 1 << 30


def decode_image(
    data: np.ndarray | bytes, color: bool | None, what: Callable[[], str]
) -> np.ndarray:
    """Return the image in an image file's bytes as (C, H, W) uint8, a non-contiguous view.

    ``color`` True gives 3 channels, False 1, None the channels of the file; ``what()`` names the
    image in errors.  Raises `DataError` unless the bytes are an image of 8 bits per channel.
    """
    encoded = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    image = decoded(encoded, color)
    if image is None:
        head = encoded[:4].tobytes().hex(" ") or "nothing"
        raise DataError(
            f"{what()} cannot be decoded: expected an image file that OpenCV knows (JPEG, PNG, …), "
            f"of at most {_most_pixels()} pixels ({limits.VARIABLE}=1 lifts this limit), found "
            f"{encoded.size} bytes that begin with {head}"
        )
    if image.dtype != _BYTES:
        raise DataError(f"{what()} should have 8 bits per channel, found {image.dtype}")
    return image[None] if image.ndim == 2 else image.transpose(2, 0, 1)


def decoded(encoded: np.ndarray, color: bool | None) -> np.ndarray | None:
    """Return OpenCV's image of a file's bytes, None if they are not an image.

    It is (H, W) or (H, W, C), of any type; ``color`` as for `decode_image`.
    """
    plain_channels, decode = decoder(color)
    return decode(encoded, plain_channels(encoded))


class Decoder(NamedTuple):
    """Decodes image files with the same result as OpenCV."""

    # Returns the channels of a file that libjpeg-turbo decodes like OpenCV, 0 for other files.
    plain_channels: Callable[[np.ndarray], int]
    # Returns the (H, W) or (H, W, C) image of a file with so many plain channels, None on failure.
    decode: Callable[[np.ndarray, int], np.ndarray | None]


@functools.cache
def decoder(color: bool | None) -> Decoder:
    """Return the `Decoder` for ``color``, as in `decode_image`."""
    import simplejpeg

    # Local names, because a decoder evicts everything from the caches and attributes are then slow.
    decode_jpeg, imdecode, too_large = simplejpeg.decode_jpeg, opencv().imdecode, opencv().error
    flags, upright = _flags()[color], color is not None

    def plain_channels(encoded: np.ndarray) -> int:
        return plain_jpeg_channels(encoded, upright)

    def decode(encoded: np.ndarray, plain: int) -> np.ndarray | None:
        if plain:  # most are, and take less time so
            try:
                if color or (plain == 3 and not upright):
                    return decode_jpeg(encoded, "BGR")
                return decode_jpeg(encoded, "GRAY")[:, :, 0]
            except (ValueError, MemoryError):
                pass  # damaged: OpenCV may still save a part
        try:
            return imdecode(encoded, flags) if encoded.size else None
        except too_large:  # for OpenCV, or for the memory
            return None

    return Decoder(plain_channels, decode)


def read_file(path: str) -> bytes:
    """Return an image file's bytes; raises `DataError` when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise DataError(f"cannot read image '{path}': {error.strerror}") from error
    except ValueError as error:  # a zero byte in the path
        raise DataError(f"cannot read image {path!r}: {error}") from None


def read_image(path: str, color: bool, height: int = 0, width: int = 0) -> np.ndarray:
    """Return the image in file ``path`` as (C, H, W) uint8, resized if a size is given.

    Raises `DataError`.
    """
    image = decode_image(read_file(path), color, lambda: f"image '{path}'")
    return resize(image, height, width) if height and width else image


def resize(image: np.ndarray, height: int, width: int, *, nearest: bool = False) -> np.ndarray:
    """Return a (C, H, W) uint8 image in another size, bilinearly, as Caffe does.

    With ``nearest`` every pixel has the value of one in the image.  Raises `DataError` when memory
    is insufficient.
    """
    kind = opencv().INTER_NEAREST if nearest else opencv().INTER_LINEAR
    what = f"{width} wide and {height} high"
    return _resized(image, what, dsize=(width, height), interpolation=kind)


def with_shorter_side(image: np.ndarray, side: int, bicubic: bool) -> np.ndarray:
    """Return a (C, H, W) uint8 image of the same aspect ratio whose shorter side is ``side``.

    It is resized bilinearly or bicubically.  Raises `DataError` when memory is insufficient.
    """
    scale = np.float32(side) / np.float32(min(image.shape[1:]))
    longer = int(scale * np.float32(max(image.shape[1:])) + np.float32(0.5))
    size = (side, longer) if image.shape[1] >= image.shape[2] else (longer, side)
    kind = opencv().INTER_CUBIC if bicubic else opencv().INTER_LINEAR
    what = f"{size[0]} wide and {size[1]} high"
    return _resized(image, what, dsize=size, interpolation=kind)


def rescale(image: np.ndarray, factor: float) -> np.ndarray:
    """Return a (C, H, W) uint8 image with sides ``factor`` times as long, bilinearly.

    Raises `DataError` when memory is insufficient.
    """
    return _resized(image, f"{factor:g} times as large", dsize=None, fx=factor, fy=factor)


def _resized(image: np.ndarray, what: str, **wanted: Any) -> np.ndarray:
    cv2, planes_last = opencv(), np.ascontiguousarray(image.transpose(1, 2, 0))
    try:
        resized = cv2.resize(planes_last, **wanted)
    except cv2.error as error:
        raise DataError(f"no image can be made {what}: {error.err}") from error
    return with_channels(resized).transpose(2, 0, 1)


def with_channels(pixels: np.ndarray) -> np.ndarray:
    """Return OpenCV's ``pixels`` as (H, W, C): OpenCV leaves out the axis of a single channel."""
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def check_kind(kind: str) -> None:
    """Raise `DataError` unless OpenCV writes image files of ``kind`` ("jpg", "png", …)."""
    if not opencv().haveImageWriter(f".{kind}"):
        raise DataError(f"OpenCV cannot write images of type '{kind}'; it writes jpg and png")


def encode(image: np.ndarray, kind: str) -> bytes:
    """Return a (C, H, W) uint8 image as the bytes of a file of ``kind`` ("jpg", "png", …).

    Raises `DataError` when OpenCV does not know that kind.
    """
    cv2 = opencv()
    try:
        done, data = cv2.imencode(f".{kind}", np.ascontiguousarray(image.transpose(1, 2, 0)))
    except cv2.error as error:
        raise DataError(f"OpenCV cannot write images of type '{kind}'") from error
    if not done:
        raise DataError(f"OpenCV cannot write this image as '{kind}'")
    return data.tobytes()


def _most_pixels() -> int:
    return _OPENCVS_LIMIT if limits.lifted() else limits.IMAGE_PIXELS


@functools.cache
def _flags() -> dict[bool | None, int]:
    """Return OpenCV's flags by ``color``."""
    cv2 = opencv()
    return {True: cv2.IMREAD_COLOR, False: cv2.IMREAD_GRAYSCALE, None: cv2.IMREAD_UNCHANGED}


@functools.cache
def opencv() -> Any:
    """Return the module cv2, set up for reader threads."""
    # Has no effect if the program has imported OpenCV before.
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(_most_pixels()))
    import cv2

    # pcaffe has its own threads; OpenCV would start as many for each of them.
    cv2.setNumThreads(1)
    if "OPENCV_LOG_LEVEL" not in os.environ:
        cv2.utils.logging.setLogLevel(0)  # what is wrong with an image, our errors tell
    return cv2
