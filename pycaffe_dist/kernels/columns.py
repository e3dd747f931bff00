"""Copies between a matrix and a range of columns of a wider matrix, on all threads."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.threads import parallel_for

ELEMENTS_PER_CHUNK = 1 << 15


@kernel
def put_columns(part: np.ndarray, whole: np.ndarray, begin: int) -> None:
    """Copy part (n, columns) to the columns of ``whole`` (n, …) from ``begin`` on."""
    _copy(whole[:, begin : begin + part.shape[1]], part)


@kernel
def take_columns(whole: np.ndarray, begin: int, part: np.ndarray) -> None:
    """Copy the columns of ``whole`` (n, …) from ``begin`` on to part (n, columns)."""
    _copy(part, whole[:, begin : begin + part.shape[1]])


def _copy(target: np.ndarray, source: np.ndarray) -> None:
    # NumPy copies without the interpreter lock.  Threads share the longer axis.
    if target.shape[0] < target.shape[1] and target.shape[0] < 8:
        target, source = target.T, source.T
    grain = -(-ELEMENTS_PER_CHUNK // max(1, target.shape[1]))
    parallel_for(_copy_rows, target.shape[0], target, source, grain=grain)


def _copy_rows(begin: int, end: int, target: np.ndarray, source: np.ndarray) -> None:
    np.copyto(target[begin:end], source[begin:end])
