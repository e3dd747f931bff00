"""Limits on the memory that one file may take: damaged and malicious files are refused.

The environment variable PCAFFE_NO_LIMITS=1 removes all of them.
"""

from __future__ import annotations

import os

VARIABLE = "PCAFFE_NO_LIMITS"

# Text takes about two hundred times its size while it is parsed.
PROTOTXT_BYTES = 4 << 20
# Of an image that OpenCV decodes; the largest cameras have 200 million pixels.
IMAGE_PIXELS = 1 << 28
# Compressed arrays may always have `_ARRAY_BYTES`; larger ones at most `_MOST_EXPANSION` times
# their stored size.
_ARRAY_BYTES = 1 << 30
_MOST_EXPANSION = 64
# Data sets of an HDF5 file are numbered from 0; the deepest nets have a few thousand.
NUMBERED_ARRAYS = 1 << 16


def lifted() -> bool:
    """Tell whether the user has lifted the limits."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def excess(size: int, limit: int, unit: str) -> str:
    """Return a text about ``size`` if it is above ``limit`` and limits apply; else an empty one."""
    if size <= limit or lifted():
        return ""
    return f"has {size} {unit}, more than {limit}: damaged? {VARIABLE}=1 lifts this limit"


def excess_expanded(size: int, stored: int) -> str:
    """Return a text about an array of ``size`` bytes, stored in ``stored`` bytes of its file, if it
    is suspiciously large; else an empty one."""
    return excess(size, max(_ARRAY_BYTES, _MOST_EXPANSION * stored), "bytes")
