"""Images as rows of bytes, cropped and otherwise unchanged; a GPU transforms them.

A row has four 32-bit numbers (the crop's top and left edge, whether to mirror it, and whether the
channels are interleaved), the crop's pixels, and padding to a multiple of 16 bytes.  Like
`kernels.transform`, these run in reader threads, each in one thread.
"""

from __future__ import annotations

import math

import numpy as np

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.datum import CHANNELS, DATA, ENCODED, HEIGHT, LABEL, SIZE, WIDTH
from pycaffe_dist.kernels.transform import crop_place

HEAD_BYTES = 16


def row_bytes(shape: tuple[int, int, int]) -> int:
    """Return the size of a row for a crop of shape (C, h, w)."""
    return HEAD_BYTES + -(-math.prod(shape) // HEAD_BYTES) * HEAD_BYTES


@jit
def pack_image(
    pixels: np.ndarray,
    interleaved: bool,
    index: int,
    key: np.uint64,
    train: bool,
    mirror: bool,
    shape: tuple[int, int, int],
    row: np.ndarray,
) -> None:
    """Write a crop (C, h, w) to a row; it is drawn as in `kernels.transform.transform_image`.

    ``pixels`` are (C, H, W) of any strides, or (1, H, W * C) with ``interleaved``; they are not
    changed.
    """
    channels, height, width = shape
    step = channels if interleaved else 1
    crop = row[HEAD_BYTES : HEAD_BYTES + channels * height * width]
    size = pixels.shape[1], pixels.shape[2] // step
    top, left, mirrored = crop_place(size, (height, width), key, index, train, mirror)
    head = row[:HEAD_BYTES].view(np.int32)
    head[0], head[1], head[2], head[3] = top, left, mirrored, interleaved
    at = 0
    for plane in range(pixels.shape[0]):
        for h in range(height):
            line = pixels[plane, top + h, left * step : (left + width) * step]
            to = crop[at : at + len(line)]
            for w in range(len(line)):
                to[w] = line[w]
            at += len(line)


@jit
def pack_decoded(
    first: int,
    step: int,
    key: np.uint64,
    train: bool,
    mirror: bool,
    shape: tuple[int, int, int],
    rows: np.ndarray,
    image: np.ndarray,
    i: int,
) -> None:
    """Pack ``image`` (H, W, C), number i of a batch and ``first + i * step`` of all, to a row."""
    lines = image.reshape((1, image.shape[0], -1))
    pack_image(lines, True, first + i * step, key, train, mirror, shape, rows[i])


@jit
def pack_datums(
    buffer: np.ndarray,
    table: np.ndarray,
    size: tuple[int, int],
    indices: tuple[int, int],
    key: np.uint64,
    train: bool,
    mirror: bool,
    shape: tuple[int, int, int],
    rows: np.ndarray,
    labels: np.ndarray,
) -> int:
    """Pack parsed Datums; return the index of the first one that it cannot pack, or n.

    It packs Datums that hold a (C, *size) image of bytes, not encoded; the crops have ``shape``.
    ``table`` is filled by `parse_datums`; Datum i has index ``indices[0] + i * indices[1]``;
    ``labels`` (n,) may have size 0.
    """
    channels = shape[0]
    count = channels * size[0] * size[1]
    for i in range(len(rows)):
        found = table[i]
        if (
            found[ENCODED]
            or found[CHANNELS] != channels
            or found[HEIGHT] != size[0]
            or found[WIDTH] != size[1]
            or found[SIZE] != count
        ):
            return i
        pixels = buffer[found[DATA] : found[DATA] + count].reshape((channels, size[0], size[1]))
        index = indices[0] + i * indices[1]
        pack_image(pixels, False, index, key, train, mirror, shape, rows[i])
        if labels.size:
            labels[i] = found[LABEL]
    return len(rows)
