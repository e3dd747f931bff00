"""Image files, read with OpenCV as Caffe reads them: blue, green, red."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from pycaffe_dist.data.jpeg import plain_jpeg_channels
from pycaffe_dist.errors import DataError

_BYTES = np.dtype(np.uint8)


def decode_image(
    data: np.ndarray | bytes, color: bool | None, what: Callable[[], str]
) -> np.ndarray:
    """Return the image in an image file's bytes as (C, H, W) uint8, a view that is not contiguous.

    ``color`` True gives 3 channels, False 1, None what the file has; ``what()`` names the image in
    errors.  Raises `DataError` when the bytes are no image or one of other than 8 bits.
    """
    encoded = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    image = decoder(color)(encoded)
    if image is None:
        head = encoded[:4].tobytes().hex(" ") or "nothing"
        raise DataError(
            f"{what()} cannot be decoded: expected an image file that OpenCV knows (JPEG, PNG, …), "
            f"of at most 2^30 pixels, found {encoded.size} bytes that begin with {head}"
        )
    if image.dtype != _BYTES:
        raise DataError(f"{what()} should have 8 bits per channel, found {image.dtype}")
    return image[None] if image.ndim == 2 else image.transpose(2, 0, 1)


class Decoder:
    """Makes image files what OpenCV makes of them; ``color`` as for `decode_image`."""

    def __init__(self, color: bool | None):
        import simplejpeg

        cv2 = _cv2()
        self._imdecode, self._flags, self._too_large = cv2.imdecode, _flags()[color], cv2.error
        self._decode_jpeg, self._color = simplejpeg.decode_jpeg, color

    def plain_channels(self, encoded: np.ndarray) -> int:
        """Return the channels of a file that `decode` has libjpeg-turbo decode, 0 for others."""
        return plain_jpeg_channels(encoded, upright=self._color is not None)

    def decode(self, encoded: np.ndarray, plain_channels: int) -> np.ndarray | None:
        """Return the (H, W) or (H, W, C) image of an array of a file's bytes, None if it has none.

        Most are such that libjpeg-turbo alone makes the same of them as OpenCV, in less time.
        """
        if plain_channels:
            # Damaged: OpenCV may still save a part.
            with contextlib.suppress(ValueError, MemoryError):
                if self._color or (self._color is None and plain_channels == 3):
                    return self._decode_jpeg(encoded, "BGR")
                return self._decode_jpeg(encoded, "GRAY")[:, :, 0]
        try:
            return self._imdecode(encoded, self._flags) if encoded.size else None
        except self._too_large:  # for OpenCV, or for the memory
            return None

    def __call__(self, encoded: np.ndarray) -> np.ndarray | None:
        """Decode a file."""
        return self.decode(encoded, self.plain_channels(encoded))


@functools.cache
def decoder(color: bool | None) -> Decoder:
    """Return the `Decoder` of ``color``."""
    return Decoder(color)


def read_file(path: str) -> bytes:
    """Return an image file's bytes; raises `DataError` when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise DataError(f"cannot read image '{path}': {error.strerror}") from error


def read_image(path: str, color: bool, height: int = 0, width: int = 0) -> np.ndarray:
    """Return the image in file ``path`` as (C, H, W) uint8, resized where a size is given.

    Raises `DataError`.
    """
    image = decode_image(read_file(path), color, lambda: f"image '{path}'")
    return resize(image, height, width) if height and width else image


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return a (C, H, W) uint8 image in another size, bilinearly, as Caffe does.

    Raises `DataError` when there is no memory for it.
    """
    cv2 = _cv2()
    planes_last = np.ascontiguousarray(image.transpose(1, 2, 0))
    try:
        resized = cv2.resize(planes_last, (width, height))
    except cv2.error as error:
        raise DataError(
            f"no image can be made {width} wide and {height} high: {error.err}"
        ) from error
    return resized[None] if resized.ndim == 2 else resized.transpose(2, 0, 1)


def check_kind(kind: str) -> None:
    """Raise `DataError` unless OpenCV writes image files of ``kind`` ("jpg", "png", …)."""
    if not _cv2().haveImageWriter(f".{kind}"):
        raise DataError(f"OpenCV cannot write images of type '{kind}'; jpg and png it can")


def encode(image: np.ndarray, kind: str) -> bytes:
    """Return a (C, H, W) uint8 image as the bytes of a file of ``kind`` ("jpg", "png", …).

    Raises `DataError` when OpenCV does not know that kind.
    """
    cv2 = _cv2()
    try:
        done, data = cv2.imencode(f".{kind}", np.ascontiguousarray(image.transpose(1, 2, 0)))
    except cv2.error as error:
        raise DataError(f"OpenCV cannot write images of type '{kind}'") from error
    if not done:
        raise DataError(f"OpenCV cannot write this image as '{kind}'")
    return data.tobytes()


@functools.cache
def _flags() -> dict[bool | None, int]:
    """Return OpenCV's ways of decoding by ``color``."""
    cv2 = _cv2()
    return {True: cv2.IMREAD_COLOR, False: cv2.IMREAD_GRAYSCALE, None: cv2.IMREAD_UNCHANGED}


@functools.cache
def _cv2() -> Any:
    import cv2

    # The threads are ours; OpenCV would start as many for every one of them.
    cv2.setNumThreads(1)
    if "OPENCV_LOG_LEVEL" not in os.environ:
        cv2.utils.logging.setLogLevel(0)  # what is wrong with an image, our errors tell
    return cv2
