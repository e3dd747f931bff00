"""Dropout on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels

_cu = kernels("dropout")


def dropout(x: Any, y: Any, key: Any, ratio: float, scale: float) -> None:
    """See `pycaffe_dist.kernels.dropout.dropout`."""
    threshold = int(min(ratio * 2.0**32, 2.0**32 - 1))
    _cu.dropout(x.size, x, y, key, threshold, scale, x.size)
