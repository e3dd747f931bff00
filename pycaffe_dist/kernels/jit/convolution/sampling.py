"""The pixels of planes at multiples of a stride, which are the inputs of strided 1×1 kernels."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

# One plane of a small image is too little work for a thread.
PIXELS_PER_CHUNK = 1 << 14


@jit
def _sample_planes(begin, end, x, sampled, row_step, step):
    for plane in range(begin, end):
        for row in range(sampled.shape[1]):
            source, target = x[plane, row * row_step], sampled[plane, row]
            for column in range(target.size):
                target[column] = source[np.uint64(column) * step]


@jit
def _spread_planes(begin, end, sampled, x, row_step, step):
    for plane in range(begin, end):
        flat = x[plane].reshape(-1)
        for i in range(flat.size):
            flat[i] = 0
        for row in range(sampled.shape[1]):
            source, target = sampled[plane, row], x[plane, row * row_step]
            for column in range(source.size):
                target[np.uint64(column) * step] = source[column]


def sample(x: np.ndarray, sampled: np.ndarray, stride: tuple[int, int]) -> None:
    """Set ``sampled`` (N, C, h, w) to the pixels of x (N, C, H, W) at multiples of ``stride``."""
    _run(_sample_planes, x, sampled, stride)


def spread(sampled: np.ndarray, x: np.ndarray, stride: tuple[int, int]) -> None:
    """Set x (N, C, H, W) to ``sampled`` at multiples of ``stride``, and to 0 elsewhere."""
    _run(_spread_planes, sampled, x, stride)


def _run(planes, source: np.ndarray, target: np.ndarray, stride: tuple[int, int]) -> None:
    count, grain = source.shape[0] * source.shape[1], max(source[0, 0].size, target[0, 0].size)
    parallel_for(
        planes,
        count,
        *(array.reshape(count, *array.shape[2:]) for array in (source, target)),
        stride[0],
        np.uint64(stride[1]),
        grain=max(1, PIXELS_PER_CHUNK // grain),
    )
