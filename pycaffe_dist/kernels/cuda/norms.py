"""Sums of squares of arrays on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np


def sum_of_squares(x: Any) -> float:
    """See `pycaffe_dist.kernels.norms.sum_of_squares`."""
    flat = x.reshape(-1)
    return float(np.dot(flat, flat))
