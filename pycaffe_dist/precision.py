"""The 16-bit types in which GPUs may store data: float16 and bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.errors import DeviceError


def bfloat16() -> np.dtype:
    """Return the dtype of bfloat16, for NumPy and CuPy; raises DeviceError if there is none."""
    try:
        import ml_dtypes
    except ImportError:
        raise DeviceError("bfloat16 needs ml_dtypes: pip install 'pycaffe-dist[gpu]'") from None
    return np.dtype(ml_dtypes.bfloat16)


def is_narrow(dtype: Any) -> bool:
    """Tell whether numbers of a floating-point dtype have 16 bits."""
    return np.dtype(dtype).itemsize == 2


def wide(dtype: np.dtype) -> np.dtype:
    """Return the type for computing with values of ``dtype``: float32 if they have 16 bits."""
    return np.dtype(np.float32) if is_narrow(dtype) else dtype
