"""BatchNorm's work on the statistics of its channels on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels

_cu = kernels("normalization")


def add_to_running_sums(
    mean: Any,
    variance: Any,
    keep: float,
    share: float,
    unbiased: float,
    means: Any,
    variances: Any,
    weight: Any,
) -> None:
    """See `pycaffe_dist.kernels.normalization.add_to_running_sums`."""
    sums = means, variances, weight
    _cu.add_to_running_sums(mean.size, mean, variance, keep, share, unbiased, *sums, mean.size)


def running_statistics(means: Any, variances: Any, weight: Any, mean: Any, variance: Any) -> None:
    """See `pycaffe_dist.kernels.normalization.running_statistics`."""
    _cu.running_statistics(mean.size, means, variances, weight, mean, variance, mean.size)


def shift_and_scale(mean: Any, variance: Any, eps: float, shift: Any, scale: Any) -> None:
    """See `pycaffe_dist.kernels.normalization.shift_and_scale`."""
    _cu.shift_and_scale(mean.size, mean, variance, eps, shift, scale, mean.size)


def gradient_terms(
    sum_dy: Any, sum_dyx: Any, count: int, scale: Any, spread: bool, offset: Any, slope: Any
) -> None:
    """See `pycaffe_dist.kernels.normalization.gradient_terms`."""
    terms = scale, spread, offset, slope
    _cu.gradient_terms(scale.size, sum_dy, sum_dyx, count, *terms, scale.size)


def add_affine_gradients(
    sum_dy: Any,
    sum_dyx: Any,
    factor: Any,
    bias: Any,
    scale: Any,
    adds: tuple[bool, bool] = (True, True),
) -> None:
    """See `pycaffe_dist.kernels.normalization.add_affine_gradients`."""
    if bias is not None or scale is not None:
        arrays, channels = (sum_dy, sum_dyx, factor, bias, scale), sum_dy.size
        _cu.add_affine_gradients(channels, *arrays, *adds, channels)
