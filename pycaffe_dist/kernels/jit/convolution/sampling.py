"""The gradients of the pixels at multiples of a stride, the inputs of strided 1×1 kernels."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

# One plane of a small image is too little work for a thread.
PIXELS_PER_CHUNK = 1 << 14


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


def spread(sampled: np.ndarray, x: np.ndarray, stride: tuple[int, int]) -> None:
    """Set x (N, C, H, W) to ``sampled`` at multiples of ``stride``, and to 0 elsewhere."""
    count = x.shape[0] * x.shape[1]
    parallel_for(
        _spread_planes,
        count,
        *(array.reshape(count, *array.shape[2:]) for array in (sampled, x)),
        stride[0],
        np.uint64(stride[1]),
        grain=max(1, PIXELS_PER_CHUNK // x[0, 0].size),
    )
