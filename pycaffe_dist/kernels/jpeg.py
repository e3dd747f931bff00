"""The head of a JPEG file."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels.compiling import jit

# Second bytes of markers: frames with Huffman codes (baseline, extended, progressive), the bounds
# of those of all frames and of the few that lie between but are none, applications' data with
# Exif's among them, and what a head cannot hold.
_FRAMES, _FIRST_FRAME, _LAST_FRAME = (0xC0, 0xC1, 0xC2), 0xC0, 0xCF
_TABLES = (0xC4, 0xC8, 0xCC)
_EXIF_DATA = 0xE1
_HEADLESS = (0x00, 0x01, 0xD8, 0xD9, 0xDA, 0xFF)
# OpenCV takes no more; libjpeg-turbo would, from a file of any length.
_MOST_PIXELS = 1 << 30


@jit
def _pixels(file: np.ndarray, at: int) -> int:
    """Return the number of pixels that the frame at ``at`` has."""
    height = (np.int64(file[at + 5]) << 8) | np.int64(file[at + 6])
    return height * ((np.int64(file[at + 7]) << 8) | np.int64(file[at + 8]))


@jit
def plain_jpeg_channels(file: np.ndarray, upright: bool) -> int:
    """Return how many channels a JPEG file has that all decoders read alike: 1, 3, or 0 if not so.

    That is one of 8 bits, with Huffman codes, gray or colored, not with four inks, and not too
    large.  With ``upright`` it must not carry Exif data either, by which some decoders turn it.
    """
    at, channels = 2, 0
    if len(file) < 4 or file[0] != 0xFF or file[1] != 0xD8:
        return 0
    while at + 4 <= len(file) and file[at] == 0xFF:
        marker, size = file[at + 1], (np.int64(file[at + 2]) << 8) | np.int64(file[at + 3])
        if marker == 0xDA:  # the scan begins
            return channels
        if marker in _HEADLESS or size < 2 or at + 2 + size > len(file):
            return 0
        if marker in _FRAMES:
            if size < 8 or file[at + 4] != 8 or channels:
                return 0
            channels = np.int64(file[at + 9])
            if (channels != 1 and channels != 3) or _pixels(file, at) > _MOST_PIXELS:
                return 0
        elif _FIRST_FRAME <= marker <= _LAST_FRAME and marker not in _TABLES:
            return 0
        if marker == _EXIF_DATA and upright:
            return 0
        at += 2 + size
    return 0
