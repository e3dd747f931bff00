"""Image files are decoded as OpenCV decodes them, whichever library does it."""

from __future__ import annotations

import struct
import zlib

import cv2
import numpy as np
import pytest

from pycaffe_dist.data.image import decode_image, decoded, decoder, resize
from pycaffe_dist.data.jpeg import plain_jpeg_channels
from pycaffe_dist.errors import DataError

FLAGS = {True: cv2.IMREAD_COLOR, False: cv2.IMREAD_GRAYSCALE, None: cv2.IMREAD_UNCHANGED}
SAMPLINGS = ("411", "420", "422", "440", "444")


def _jpeg(shape=(33, 50, 3), quality=90, sampling="420", progressive=0, restart=0) -> np.ndarray:
    small = np.random.default_rng(1).integers(0, 256, (shape[0] // 4 + 1, *shape[1:]), np.uint8)
    image = cv2.resize(small, shape[1::-1])
    factor = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{sampling}")
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor]
    options += [cv2.IMWRITE_JPEG_PROGRESSIVE, progressive, cv2.IMWRITE_JPEG_RST_INTERVAL, restart]
    return cv2.imencode(".jpg", image, options)[1].ravel()


def _with_segment(file: np.ndarray, marker: int, payload: bytes) -> np.ndarray:
    """Insert a segment after the first one."""
    at = 4 + int.from_bytes(file[4:6].tobytes(), "big")
    segment = struct.pack(">BBH", 0xFF, marker, 2 + len(payload)) + payload
    return np.concatenate([file[:at], np.frombuffer(segment, np.uint8), file[at:]])


def _turned(file: np.ndarray, orientation: int) -> np.ndarray:
    """Add Exif data with an orientation."""
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    tiff = b"II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4)
    return _with_segment(file, 0xE1, b"Exif\0\0" + tiff)


def _same(file: np.ndarray, plain: bool) -> None:
    for color, flags in FLAGS.items():
        expected = cv2.imdecode(file, flags) if file.size else None
        found = decoded(file, color)
        assert (found is None) == (expected is None)
        assert found is None or np.array_equal(found, expected)
        assert bool(plain_jpeg_channels(file, color is not None)) == plain


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", [(1, 1, 3), (7, 9, 3), (33, 50, 3), (64, 64, 3), (21, 17)])
def test_plain_jpegs(sampling, shape):
    for quality in (10, 50, 100):
        for progressive, restart in ((0, 0), (1, 0), (0, 3)):
            _same(_jpeg(shape, quality, sampling, progressive, restart), True)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientations(orientation):
    file = _turned(_jpeg(), orientation)
    shape = cv2.imdecode(file, cv2.IMREAD_COLOR).shape
    assert shape == ((50, 33, 3) if orientation > 4 else (33, 50, 3))
    for color, flags in FLAGS.items():
        assert np.array_equal(decoded(file, color), cv2.imdecode(file, flags))
        assert plain_jpeg_channels(file, color is not None) == (3 if color is None else 0)


def test_other_segments_in_a_head():
    file = _jpeg()
    for marker, payload in ((0xE2, b"ICC_PROFILE\0" + bytes(9)), (0xFE, b"made by hand")):
        _same(_with_segment(file, marker, payload), True)
    _same(np.concatenate([file, np.frombuffer(b"more", np.uint8)]), True)


@pytest.mark.parametrize("kind", [".png", ".bmp", ".webp"])
def test_files_of_other_kinds(kind):
    _same(cv2.imencode(kind, np.arange(300, dtype=np.uint8).reshape(10, 10, 3))[1].ravel(), False)


def test_damaged_files_are_left_to_opencv():
    file, cut = _jpeg((64, 64, 3)), []
    for end in (*range(0, 700, 7), len(file) // 2, len(file) - 40):
        color, expected = decoded(file[:end], True), None
        if end:
            expected = cv2.imdecode(file[:end], cv2.IMREAD_COLOR)
        assert (color is None) == (expected is None)
        assert color is None or np.array_equal(color, expected)
        cut.append(expected is None)
    assert any(cut)
    for at in range(2, len(file) - 2, 53):
        broken = file.copy()
        broken[at : at + 2] = 0xFF, 0x8E
        found, expected = decoded(broken, True), cv2.imdecode(broken, cv2.IMREAD_COLOR)
        assert (found is None) == (expected is None)
        assert found is None or np.array_equal(found, expected)


def test_unusual_heads():
    file = _jpeg()
    frame = int(np.flatnonzero((file[:-1] == 0xFF) & (file[1:] == 0xC0))[0])
    for at, value in ((frame + 1, 0xC3), (frame + 1, 0xC9), (frame + 4, 12), (frame + 9, 4)):
        other = file.copy()
        other[at] = value
        assert plain_jpeg_channels(other, True) == 0
    assert plain_jpeg_channels(file, True) == 3
    assert plain_jpeg_channels(_jpeg((9, 9)), True) == 1
    for end in range(frame + 20):
        assert plain_jpeg_channels(file[:end], True) == 0
    filled = np.insert(file, frame, 0xFF)
    assert plain_jpeg_channels(filled, True) == 0


def test_images_that_are_too_large():
    jpeg = _jpeg()
    frame = int(np.flatnonzero((jpeg[:-1] == 0xFF) & (jpeg[1:] == 0xC0))[0])
    jpeg[frame + 5 : frame + 9] = 0xFF
    png = cv2.imencode(".png", np.zeros((1, 1), np.uint8))[1].ravel()
    png[16:24] = list(struct.pack(">II", 1 << 17, 1 << 17))
    png[29:33] = list(struct.pack(">I", zlib.crc32(png[12:29].tobytes())))
    for file in (jpeg, png):
        with pytest.raises(DataError, match=r"image .x. cannot .* at most \d+ pixels"):
            decode_image(file, True, lambda: "image 'x'")
    with pytest.raises(DataError, match="no image can be made 1000000 wide and 1000000 high"):
        resize(np.zeros((3, 2, 2), np.uint8), 1_000_000, 1_000_000)


def test_plain_files_do_not_use_opencv(monkeypatch):
    decoder.cache_clear()
    monkeypatch.setattr(cv2, "imdecode", lambda *args: pytest.fail("OpenCV was asked"))
    try:
        assert decoded(_jpeg(), True).shape == (33, 50, 3)
    finally:
        decoder.cache_clear()


def test_errors_name_the_image():
    with pytest.raises(DataError, match=r"image .x. cannot be decoded: .* found 4 bytes .* 6e 6f"):
        decode_image(b"no i", True, lambda: "image 'x'")
    with pytest.raises(DataError, match="found 0 bytes that begin with nothing"):
        decode_image(b"", True, lambda: "image 'x'")
