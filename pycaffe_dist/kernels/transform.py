"""Crop, mirror, mean subtraction and scaling of images, in one pass from bytes to floats.

Each runs in one thread, because reader threads call it beside the training threads.
"""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.datum import (
    CHANNELS,
    DATA,
    ENCODED,
    FLOATS,
    HEIGHT,
    LABEL,
    SIZE,
    WIDTH,
    copy_floats,
)

# The purposes of the random numbers of an image.
_MIRROR, _ROW, _COLUMN = np.uint64(0), np.uint64(1), np.uint64(2)

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


@jit
def _draw(key, index, purpose, n):
    """Return a number in [0, n) that depends on the arguments alone.

    SplitMix64 (Steele, Lea, Flood 2014) as a counter-based generator: the key selects the sequence;
    the image's index and the purpose select the place in it.
    """
    z = key + (np.uint64(index) * np.uint64(4) + purpose + np.uint64(1)) * _WEYL
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    z = z ^ (z >> np.uint64(31))
    return np.int64((z >> np.uint64(32)) * np.uint64(n) >> np.uint64(32))


@jit
def is_mirrored(key: np.uint64, index: int, mirror: bool) -> bool:
    """Return whether an image is mirrored; without ``mirror`` none is."""
    return mirror and _draw(key, index, _MIRROR, 2) == 1


@jit
def crop_place(size, crop, key, index, train, mirror) -> tuple[int, int, bool]:
    """Return the top and left edge of a ``crop`` (h, w) in an image of ``size`` (height, width).

    The third value says whether to mirror it.
    """
    top, left = size[0] - crop[0], size[1] - crop[1]
    if train:
        top, left = _draw(key, index, _ROW, top + 1), _draw(key, index, _COLUMN, left + 1)
    else:
        top, left = top // 2, left // 2
    return top, left, is_mirrored(key, index, mirror)


@jit
def crop_places(
    size: tuple[int, int],
    crop: tuple[int, int],
    count: int,
    indices: tuple[int, int],
    key: np.uint64,
    train: bool,
    mirror: bool,
) -> np.ndarray:
    """Return `crop_place` of ``count`` images, (count, 3) int64.

    Image i has index ``indices[0] + i * indices[1]``.
    """
    places = np.empty((count, 3), np.int64)
    for i in range(count):
        index = indices[0] + i * indices[1]
        top, left, mirrored = crop_place(size, crop, key, index, train, mirror)
        places[i, 0], places[i, 1], places[i, 2] = top, left, mirrored
    return places


@jit
def _reverse(line, to):
    """Copy a line backwards; unsigned indices keep the loop free of checks for negative ones."""
    last = np.uint64(len(line) - 1)
    for w in range(len(line)):
        to[w] = line[last - np.uint64(w)]


@jit
def transform_image(
    pixels: np.ndarray,
    index: int,
    key: np.uint64,
    train: bool,
    mirror: bool,
    mean: np.ndarray,
    mean_values: np.ndarray,
    scale: float,
    out: np.ndarray,
) -> None:
    """Write (pixel - mean) * scale of a crop of ``pixels`` to ``out``.

    ``pixels``: (C, H, W), any strides; ``out``: (C, h, w) with h <= H and w <= W; ``mean``: like
    the pixels, or of size 0, and then ``mean_values`` has one value per channel; mean and scale are
    of the dtype of ``out``.  With ``train`` the crop is random, otherwise central; with ``mirror``
    about every other image is mirrored.  Both are drawn from ``key`` and the image's ``index``.
    """
    channels, height, width = out.shape
    as_float = out.dtype.type
    top, left, mirrored = crop_place(pixels.shape[1:], (height, width), key, index, train, mirror)
    spare = np.empty(width, out.dtype)
    for c in range(channels):
        for h in range(height):
            row = pixels[c, top + h, left : left + width]
            line = spare if mirrored else out[c, h]
            if mean.size == 0:
                value = mean_values[c]
                for w in range(width):
                    line[w] = (as_float(row[w]) - value) * scale
            else:
                mean_row = mean[c, top + h, left : left + width]
                for w in range(width):
                    line[w] = (as_float(row[w]) - mean_row[w]) * scale
            if mirrored:
                _reverse(line, out[c, h])


@jit
def _transform_whole(pixels, channels, mean, mean_values, scale, out):
    """Do what `transform_image` does without a crop: a channel is one long line.

    ``pixels`` and ``out`` are flat.
    """
    size = len(out) // channels
    as_float = out.dtype.type
    for c in range(channels):
        plane, to = pixels[c * size : (c + 1) * size], out[c * size : (c + 1) * size]
        if mean.size == 0:
            value = mean_values[c]
            for k in range(size):
                to[k] = (as_float(plane[k]) - value) * scale
        else:
            mean_plane = mean[c].reshape(-1)
            for k in range(size):
                to[k] = (as_float(plane[k]) - mean_plane[k]) * scale


@jit
def _transform_values(
    values, height, width, index, key, train, mirror, mean, mean_values, scale, out
):
    """Do what `transform_image` does, with flat values of an image of (height, width)."""
    channels, size, crop = out.shape[0], (height, width), out.shape[1:]
    if size == crop and not crop_place(size, crop, key, index, train, mirror)[2]:
        _transform_whole(values, channels, mean, mean_values, scale, out.reshape(-1))
    else:
        pixels = values.reshape((channels, height, width))
        transform_image(pixels, index, key, train, mirror, mean, mean_values, scale, out)


@jit
def transform_datums(
    buffer: np.ndarray,
    values: np.ndarray,
    table: np.ndarray,
    begin: int,
    height: int,
    width: int,
    indices: tuple[int, int],
    key: np.uint64,
    train: bool,
    mirror: bool,
    mean: np.ndarray,
    mean_values: np.ndarray,
    scale: float,
    out: np.ndarray,
    labels: np.ndarray,
) -> int:
    """Transform parsed Datums from number ``begin`` on; return the first that it cannot do, or n.

    It transforms Datums that are not encoded and hold a (C, height, width) image, C as in ``out``
    (n, C, h, w).  ``table`` and ``values`` are filled by `parse_datums`; Datum i has index
    ``indices[0] + i * indices[1]``; ``labels`` (n,) may have size 0.  For the other arguments see
    `transform_image`.
    """
    channels = out.shape[1]
    size = channels * height * width
    floats = np.empty(0, np.float32)
    for i in range(begin, len(out)):
        row = table[i]
        if (
            row[ENCODED]
            or row[CHANNELS] != channels
            or row[HEIGHT] != height
            or row[WIDTH] != width
        ):
            return i
        index = indices[0] + i * indices[1]
        if row[SIZE] == size:
            pixels = buffer[row[DATA] : row[DATA] + size]
            _transform_values(
                pixels, height, width, index, key, train, mirror, mean, mean_values, scale, out[i]
            )
        elif row[SIZE] == 0 and row[FLOATS] == size:
            if floats.size == 0:
                floats = np.empty(size, np.float32)
            copy_floats(buffer, values[i, 0], values[i, 1], floats)
            _transform_values(
                floats, height, width, index, key, train, mirror, mean, mean_values, scale, out[i]
            )
        else:
            return i
        if labels.size:
            labels[i] = row[LABEL]
    return len(out)
