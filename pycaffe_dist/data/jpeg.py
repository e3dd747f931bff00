"""Reads the head of a JPEG file in plain Python: tools start sooner without compiled kernels."""

from __future__ import annotations

import numpy as np

from pycaffe_dist import limits

_START, _SCAN = b"\xff\xd8", 0xDA
# Second bytes of markers: frames with Huffman codes (baseline, extended, progressive) and the
# others, applications' data such as Exif, and markers that cannot be in a head.
_FRAMES = frozenset((0xC0, 0xC1, 0xC2))
_OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
_EXIF_DATA = 0xE1
_IMPOSSIBLE = frozenset((0x00, 0x01, 0xD8, 0xD9, 0xFF)) | _OTHER_FRAMES


def plain_jpeg_channels(file: np.ndarray, upright: bool) -> int:
    """Return the channels, 1 or 3, of a JPEG file that all decoders read in the same way, else 0.

    Such a file has 8 bits, Huffman codes, gray or color (not four inks), and a size within
    `limits`.  With ``upright`` it must not have Exif data, because some decoders rotate by them.
    """
    data = file.data
    at, end, channels = 2, len(data), 0
    if data[:at] != _START:
        return 0
    while at + 4 <= end and data[at] == 0xFF:
        marker, size = data[at + 1], data[at + 2] << 8 | data[at + 3]
        if marker == _SCAN:
            return channels
        if marker in _IMPOSSIBLE or size < 2 or at + 2 + size > end:
            return 0
        if marker in _FRAMES:
            if channels:
                return 0
            channels = _frame_channels(data[at + 4 : at + 2 + size])
            if not channels:
                return 0
        elif marker == _EXIF_DATA and upright:
            return 0
        at += 2 + size
    return 0


def _frame_channels(frame: memoryview) -> int:
    """Return the number of channels in a frame's header, 0 for a frame that is not plain."""
    if len(frame) < 6 or frame[0] != 8 or frame[5] not in (1, 3):
        return 0
    height, width = frame[1] << 8 | frame[2], frame[3] << 8 | frame[4]
    return frame[5] if height * width <= limits.IMAGE_PIXELS else 0
