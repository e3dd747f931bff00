"""BatchNorm's work on the statistics of its channels on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.channel_affine import join_gradient_sums, join_statistics

_cu = kernels("normalization")

backward_sums = join_gradient_sums


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
    join_statistics(x, mean, variance, running, (eps, shift, scale, factor, product))


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
