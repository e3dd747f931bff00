"""BatchNorm's work on the statistics of its channels on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.channel_affine import join_gradient_sums, join_statistics

_cu = kernels("normalization")


def measure(
    x: Any,
    mean: Any,
    variance: Any,
    running: Any,
    eps: float,
    shift: Any,
    scale: Any,
    factor: Any = None,
    product: Any = None,
) -> None:
    """See `pycaffe_dist.kernels.normalization.measure`."""
    scales = eps, shift, scale, factor, product
    if running is None:
        join_statistics(x, mean, variance, scales=scales)
    else:
        join_statistics(x, mean, variance, tuple(running), scales)


def running_statistics(means: Any, variances: Any, weight: Any, mean: Any, variance: Any) -> None:
    """See `pycaffe_dist.kernels.normalization.running_statistics`."""
    _cu.running_statistics(mean.size, means, variances, weight, mean, variance, mean.size)


def shift_and_scale(
    mean: Any,
    variance: Any,
    eps: float,
    shift: Any,
    scale: Any,
    factor: Any = None,
    product: Any = None,
) -> None:
    """See `pycaffe_dist.kernels.normalization.shift_and_scale`."""
    scales = shift, scale, factor, product
    _cu.shift_and_scale(mean.size, mean, variance, eps, *scales, mean.size)


def backward_sums(
    x: Any,
    dy: Any,
    shift: Any,
    sum_dy: Any,
    sum_dyx: Any,
    affine: Any = None,
    terms: Any = None,
    rectifier: Any = None,
) -> None:
    """See `pycaffe_dist.kernels.normalization.backward_sums`."""
    given: dict[str, Any] = {}
    if rectifier is not None:
        given["rectifier"] = tuple(rectifier)
    if affine is not None:
        given["affine"] = tuple(affine)
    if terms is not None:
        given["terms"] = tuple(terms)
    join_gradient_sums(x, dy, shift, sum_dy, sum_dyx, **given)
