"""JPEG files that end early decode to the same lines, silently; others are left as they are."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from pycaffe_dist.kernels.jpeg import places_to_cut, shortened

HEIGHT, WIDTH = 61, 53
SAMPLINGS = {
    "4:4:4": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "4:2:2": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "4:2:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "4:4:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    "4:1:1": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
}


def _file(*flags: int, channels: int = 3) -> np.ndarray:
    pixels = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, channels), np.uint8)
    return cv2.imencode(".jpg", pixels, list(flags))[1].reshape(-1)


def _shortened(files: list[np.ndarray], lines: list[int], shape=(HEIGHT, WIDTH), as_stored=True):
    """Return the files that are shorter than these, None for others, and their lines."""
    ends = np.cumsum([len(file) for file in files])
    places = np.array([[end - len(file), len(file)] for end, file in zip(ends, files)])
    found = places_to_cut(np.concatenate(files), places, *shape, np.array(lines), as_stored)
    cut = [shortened(file, *cut) if cut[0] else None for file, cut in zip(files, found)]
    return cut, found[:, 0]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_first_lines_are_the_same_to_the_bit(sampling, capfd):
    file = _file(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling])
    whole, lines = cv2.imdecode(file, cv2.IMREAD_UNCHANGED), list(range(1, HEIGHT + 1))
    files, kept = _shortened([file] * HEIGHT, lines)
    for short, wanted, there in zip(files, lines, kept):
        if short is not None:
            image = cv2.imdecode(short, cv2.IMREAD_UNCHANGED)
            assert image.shape == (there, WIDTH, 3)
            assert np.array_equal(image[:wanted], whole[:wanted])
    assert files[HEIGHT // 2] is not None
    assert files[-1] is None
    assert capfd.readouterr().err == ""


def _with_segment(file: np.ndarray, marker: int, contents: bytes) -> np.ndarray:
    head = bytes([0xFF, marker, 0, 2 + len(contents)]) + contents
    return np.concatenate([file[:2], np.frombuffer(head, np.uint8), file[2:]])


def test_files_that_cannot_end_early_are_left_alone():
    file = _file()
    others = [
        _file(cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        _file(cv2.IMWRITE_JPEG_RST_INTERVAL, 1),
        _file(channels=1),
        file[:-1],
        file[:700],
        file[:3],
        _with_segment(file, 0xE2, b"MPF\0"),
        cv2.imencode(".png", np.zeros((HEIGHT, WIDTH, 3), np.uint8))[1].reshape(-1),
        np.zeros(0, np.uint8),
        file,
    ]
    files, _ = _shortened(others, [9] * len(others))
    assert [short is None for short in files] == [True] * (len(others) - 1) + [False]
    assert _shortened([file], [9], (HEIGHT + 1, WIDTH))[0] == [None]
    assert _shortened([file], [9], (HEIGHT, WIDTH - 1))[0] == [None]


def test_an_image_that_might_have_to_be_turned_is_left_alone():
    file = _with_segment(_file(), 0xE1, b"Exif\0\0")
    assert _shortened([file], [9], as_stored=False)[0] == [None]
    assert _shortened([file], [9], as_stored=True)[0][0] is not None
