"""Limits of what a file may make pcaffe take of memory: damaged and malicious files are refused.

The environment variable PCAFFE_NO_LIMITS=1 lifts them all.
"""

from __future__ import annotations

import os

VARIABLE = "PCAFFE_NO_LIMITS"

# Text takes about two hundred times its size while it is parsed.
PROTOTXT_BYTES = 4 << 20
# What OpenCV decodes, from however few bytes; the largest cameras have 200 million pixels.
IMAGE_PIXELS = 1 << 28
# Compressed arrays may always be this large; larger ones at most so many times what is stored.
_ARRAY_BYTES = 1 << 30
_MOST_EXPANSION = 64
# Data sets of an HDF5 file are numbered from 0; the deepest nets have a few thousand.
NUMBERED_ARRAYS = 1 << 16


def lifted() -> bool:
    """Tell whether the user has lifted the limits."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def excess(size: int, limit: int, unit: str) -> str:
    """Return words about ``size`` if it is above ``limit`` and counts; empty if it is not."""
    if size <= limit or lifted():
        return ""
    return f"has {size} {unit}, more than {limit}: damaged? {VARIABLE}=1 lifts this limit"


def excess_expanded(size: int, stored: int) -> str:
    """Return words about an array of ``size`` bytes, of which ``stored`` are in its file; empty
    unless it is suspiciously large."""
    return excess(size, max(_ARRAY_BYTES, _MOST_EXPANSION * stored), "bytes")
