"""Copies between matrices and stretches of the columns of wider ones."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel


@kernel
def put_columns(part: np.ndarray, whole: np.ndarray, begin: int) -> None:
    """Copy part (n, columns) to the columns of ``whole`` (n, …) from ``begin`` on."""
    np.copyto(whole[:, begin : begin + part.shape[1]], part)


@kernel
def take_columns(whole: np.ndarray, begin: int, part: np.ndarray) -> None:
    """Copy the columns of ``whole`` (n, …) from ``begin`` on to part (n, columns)."""
    np.copyto(part, whole[:, begin : begin + part.shape[1]])
