"""BatchNorm's work on the statistics of its channels on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.channel_affine import (
    affine,
    affine_in_place,
    join_gradient_sums,
    join_statistics,
    normalize_gradient,
)

_cu = kernels("normalization")

backward_sums = join_gradient_sums


def normalize(
    x: Any, y: Any, kept: Any, result: Any, running: Any, eps: float, following: Any
) -> None:
    """See `pycaffe_dist.kernels.normalization.normalize`."""
    mean, variance, shift, scale, product = result
    scales = eps, shift, scale, following.factor, product
    join_statistics(x, mean, variance, running, scales)
    vectors = shift, product, following.bias, following.slope
    if kept is None:
        affine(x, y, *vectors)
    else:
        affine_in_place(x, kept, *vectors)


def recall(
    means: Any, variances: Any, weight: Any, eps: float, result: Any, factor: Any = None
) -> None:
    """See `pycaffe_dist.kernels.normalization.recall`."""
    mean, variance, shift, scale, product = result
    outputs = mean, variance, eps, shift, scale, factor, product
    _cu.recall(mean.size, means, variances, weight, *outputs, mean.size)


def normalize_backward(
    x: Any,
    dy: Any,
    dx: Any,
    result: Any,
    sums: Any,
    gradients: Any,
    terms: Any,
    following: Any,
) -> None:
    """See `pycaffe_dist.kernels.normalization.normalize_backward`."""
    bias, slope = following.bias, following.slope
    rectifier = None if slope is None else (result.product, bias, slope)
    join_gradient_sums(x, dy, result.shift, *sums, gradients, terms, rectifier)
    vectors = result.shift, result.product, terms.offset, terms.slope
    normalize_gradient(x, dy, dx, *vectors, bias, slope)
