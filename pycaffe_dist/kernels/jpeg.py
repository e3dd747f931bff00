"""JPEG files that end early: what lies below a crop need not be decoded.

A file of ITU-T T.81 is a row of segments (two bytes of marker, two of size, contents) up to the
start of a scan, whose coded pixels follow.  They are coded in rows of 8 or more lines, each of
which needs the ones above it, so that decoders can stop early but not begin late.
"""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels.compiling import jit

# Markers: frames that are decoded from top to bottom, other segments, and the end.
_BASELINE, _EXTENDED = 0xC0, 0xC1
_FIRST, _LAST = 0xC0, 0xFE
_HUFFMAN, _ARITHMETIC = 0xC4, 0xCC
_RESTART, _END, _SCAN, _RESTART_INTERVAL = 0xD0, 0xD9, 0xDA, 0xDD
_EXIF, _PROFILE = 0xE1, 0xE2
_BLOCK = 8
# What a decoder may want to read ahead of the pixels that it needs.
_AHEAD = 64


@jit
def _word(data, at):
    return np.int64(data[at]) << 8 | np.int64(data[at + 1])


@jit
def _find_frame(data, as_stored):
    """Return where the segment of the one frame begins that a file holds, or -1.

    It is -1, too, where the frame's colors come in several scans, where there are markers between
    the pixels, and where the image might have to be turned and is not wanted ``as_stored``.
    """
    at, frame = 2, -1
    while at + 10 < len(data) and data[at] == 0xFF:
        marker, size = data[at + 1], _word(data, at + 2)
        if marker < _FIRST or marker > _LAST or _RESTART <= marker <= _END:
            return -1
        if marker == _SCAN:
            return frame if frame >= 0 and data[at + 4] == data[frame + 9] else -1
        if marker in (_BASELINE, _EXTENDED):
            if frame >= 0:
                return -1
            frame = at
        elif marker < _RESTART and marker != _HUFFMAN and marker != _ARITHMETIC:
            return -1  # frames of other kinds
        elif (
            (marker == _RESTART_INTERVAL and _word(data, at + 4) > 0)
            or (marker == _EXIF and not as_stored)
            or (marker == _PROFILE and data[at + 4] != ord("I"))  # more images behind this one
        ):
            return -1
        at += 2 + size
    return -1


@jit
def shortened(data: np.ndarray, height: int, width: int, lines: int, as_stored: bool) -> np.ndarray:
    """Return a JPEG file, uint8, that ends below the first ``lines`` lines of the one in ``data``.

    That is one with some lines more, of which the last one may differ.  Of size 0 where there is
    nothing to save, where ``data`` (n,) is not a whole file with three colors and of (height,
    width), or not of the usual kind; unless the image is wanted ``as_stored``, also where it might
    have to be turned.
    """
    nothing, size = np.empty(0, np.uint8), len(data)
    if size < 4 or _word(data, 0) != 0xFFD8 or _word(data, size - 2) != 0xFF00 | _END:
        return nothing
    frame = _find_frame(data, as_stored)
    if frame < 0 or frame + 19 > size or data[frame + 4] != 8 or data[frame + 9] != 3:
        return nothing
    if _word(data, frame + 5) != height or _word(data, frame + 7) != width:
        return nothing
    blocks = max(data[frame + 11] & 15, data[frame + 14] & 15, data[frame + 17] & 15)
    # Colors at half the resolution are interpolated between lines.
    kept, row = lines + (1 if blocks > 1 else 0), _BLOCK * blocks
    if blocks == 0 or -(-kept // row) >= -(-height // row):
        return nothing
    # The mark of the end would have the decoder complain of the bytes before it.
    short = np.empty(size - 2 + _AHEAD, np.uint8)
    short[: size - 2] = data[: size - 2]
    short[size - 2 :] = 0
    short[frame + 5], short[frame + 6] = kept >> 8, kept & 255
    return short
