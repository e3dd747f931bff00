"""The types of numbers: 16 bits for data on GPUs, and for factors of products on CPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.config import PRECISIONS
from pycaffe_dist.errors import DeviceError, UsageError, did_you_mean


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


def checked_precision(name: str, keep_blobs: bool, on_gpu: bool) -> str:
    """Return ``name`` if a net can have this precision; raises UsageError."""
    if name not in PRECISIONS:
        raise UsageError(
            f"precision '{name}' is none of {', '.join(PRECISIONS)}{did_you_mean(name, PRECISIONS)}"
        )
    if name != "float32" and on_gpu:
        raise UsageError(f"precision {name} is for nets on the CPU; on a GPU take float32")
    if name != "float32" and keep_blobs:
        raise UsageError(f"precision {name} is for inference: the net needs keep_blobs=False")
    return name
