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
_START, _FIRST, _LAST = 0xFFD8, 0xC0, 0xFE
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
def _lines_to_keep(data, height, width, lines, frame):
    size = len(data)
    if frame < 0 or frame + 19 > size or data[frame + 4] != 8 or data[frame + 9] != 3:
        return 0
    if _word(data, frame + 5) != height or _word(data, frame + 7) != width:
        return 0
    blocks = max(data[frame + 11] & 15, data[frame + 14] & 15, data[frame + 17] & 15)
    # Colors at half the resolution are interpolated between lines.
    kept, row = lines + (1 if blocks > 1 else 0), _BLOCK * blocks
    return kept if blocks and -(-kept // row) < -(-height // row) else 0


@jit
def places_to_cut(
    buffer: np.ndarray,
    files: np.ndarray,
    height: int,
    width: int,
    lines: np.ndarray,
    as_stored: bool,
) -> np.ndarray:
    """Return where JPEG files may end of which the first ``lines`` (n,) are needed.

    File i of these, (n, 2), is described by its place and size in ``buffer``.  The result, (n, 2),
    has the numbers of lines to keep, some more than needed, of which the last one may differ from
    the whole image's, and the place in the file where that is written.  The number is 0 where there
    is nothing to save, and where a file is not whole, not of (height, width) in three colors or not
    of the usual kind; unless images are wanted ``as_stored``, also where one might have to be
    turned.
    """
    found = np.zeros((len(files), 2), np.int64)
    for i in range(len(files)):
        data = buffer[files[i, 0] : files[i, 0] + files[i, 1]]
        size = len(data)
        if size < 4 or _word(data, 0) != _START or _word(data, size - 2) != 0xFF00 | _END:
            continue
        frame = _find_frame(data, as_stored)
        found[i, 0] = _lines_to_keep(data, height, width, lines[i], frame)
        found[i, 1] = frame + 5
    return found


@jit
def shortened(data: np.ndarray, kept: int, place: int) -> np.ndarray:
    """Return the JPEG file in ``data`` (n,) cut as `places_to_cut` says."""
    # The mark of the end would have the decoder complain of the bytes before it.
    end = len(data) - 2
    short = np.empty(end + _AHEAD, np.uint8)
    for k in range(end):
        short[k] = data[k]
    for k in range(end, len(short)):
        short[k] = 0
    short[place], short[place + 1] = kept >> 8, kept & 255
    return short
