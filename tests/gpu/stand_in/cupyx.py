"""Pinned memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from cupy._machine import pinned


def zeros_pinned(shape: Any, dtype: Any) -> np.ndarray:
    # Like CuPy, it takes no number of NumPy's for a shape.
    array = np.zeros((shape,) if isinstance(shape, int) else tuple(shape), dtype)
    pinned[id(array)] = array
    return array
