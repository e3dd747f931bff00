"""BatchNorm's work on the statistics of its channels: vectors of one value for each channel.

Statistics and sums are float64; running sums, shifts, scales and the gradient's terms are of the
parameters' dtype.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.channel_affine import (
    gradient_sums,
    rectified_gradient_sums,
    statistics,
)


class RunningSums(NamedTuple):
    """Sums of means and variances, with their weight (1,) if there is one.

    A batch's statistics are added ``share`` times, after the sums were multiplied by ``keep``; its
    variance is first multiplied by ``unbiased``, and the weight gets ``share``.
    """

    means: np.ndarray
    variances: np.ndarray
    weight: np.ndarray | None
    keep: float
    share: float
    unbiased: float

    def add(self, mean: np.ndarray, variance: np.ndarray) -> None:
        """Add a batch's statistics."""
        addends = mean, variance * self.unbiased, 1.0
        for total, addend in zip((self.means, self.variances, self.weight), addends):
            if total is not None:
                total[...] = total * self.keep + addend * self.share


class AffineGradients(NamedTuple):
    """The gradients of a bias and a scale, each maybe None, that the sums of dy and dy·x give.

    Sums of dy·x are multiplied by ``factor``, if given.  Unless it ``adds``, a gradient is set.
    """

    factor: np.ndarray | None
    bias: np.ndarray | None
    scale: np.ndarray | None
    bias_adds: bool = True
    scale_adds: bool = True

    def take(self, sum_dy: np.ndarray, sum_dyx: np.ndarray) -> None:
        """Add the sums to the gradients, or set these."""
        own = sum_dyx if self.factor is None else sum_dyx * self.factor
        if self.bias is not None:
            self.bias[...] = self.bias + sum_dy if self.bias_adds else sum_dy
        if self.scale is not None:
            self.scale[...] = self.scale + own if self.scale_adds else own


class GradientTerms(NamedTuple):
    """The terms that `channel_affine.normalize_gradient` subtracts, offset and slope.

    The slope is 0 unless the scale of forward depends on x (``spread``).
    """

    scale: np.ndarray
    spread: bool
    offset: np.ndarray
    slope: np.ndarray

    def find(self, sum_dy: np.ndarray, sum_dyx: np.ndarray, count: int) -> None:
        """Set the terms from sums over ``count`` elements."""
        self.offset[...] = sum_dy / count
        self.slope[...] = sum_dyx / count * self.scale.astype(float) ** 2 if self.spread else 0


class Rectifier(NamedTuple):
    """The scale and bias of `channel_affine.affine`, and the slope of results not positive."""

    scale: np.ndarray
    bias: np.ndarray
    slope: float


@kernel
def measure(
    x: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    running: RunningSums | None,
    eps: float,
    shift: np.ndarray,
    scale: np.ndarray,
    factor: np.ndarray | None = None,
    product: np.ndarray | None = None,
) -> None:
    """Set mean and variance to those of x (outer, channels, inner), and do what follows from them.

    They are added to the running sums, and set shift and scale, see `shift_and_scale`.
    """
    statistics(x, mean, variance)
    if running is not None:
        running.add(mean, variance)
    shift_and_scale(mean, variance, eps, shift, scale, factor, product)


@kernel
def running_statistics(
    means: np.ndarray,
    variances: np.ndarray,
    weight: np.ndarray | None,
    mean: np.ndarray,
    variance: np.ndarray,
) -> None:
    """Set mean and variance to the running sums over their weight (1,), or to 0 if that is 0.

    Without a weight the sums are the statistics.
    """
    total = 1.0 if weight is None else float(weight[0])
    factor = 1 / total if total else 0.0
    np.multiply(means, factor, out=mean)
    np.multiply(variances, factor, out=variance)


@kernel
def shift_and_scale(
    mean: np.ndarray,
    variance: np.ndarray,
    eps: float,
    shift: np.ndarray,
    scale: np.ndarray,
    factor: np.ndarray | None = None,
    product: np.ndarray | None = None,
) -> None:
    """Set shift to the mean, scale to 1 / sqrt(variance + eps), and product to scale·factor.

    Factor and product may be None.
    """
    shift[...] = mean
    scale[...] = 1 / np.sqrt(variance + eps)
    if factor is not None and product is not None:
        np.multiply(scale, factor, out=product)


@kernel
def backward_sums(
    x: np.ndarray,
    dy: np.ndarray,
    shift: np.ndarray,
    sum_dy: np.ndarray,
    sum_dyx: np.ndarray,
    affine: AffineGradients | None = None,
    terms: GradientTerms | None = None,
    rectifier: Rectifier | None = None,
) -> None:
    """Set sums of dy and of dy·(x - shift) per channel of (outer, channels, inner); pass them on.

    With a ``rectifier`` they are the sums of `channel_affine.rectified_gradient_sums`.
    """
    if rectifier is None:
        gradient_sums(x, dy, shift, sum_dy, sum_dyx)
    else:
        rectified_gradient_sums(x, dy, shift, *rectifier, sum_dy, sum_dyx)
    if affine is not None:
        affine.take(sum_dy, sum_dyx)
    if terms is not None:
        terms.find(sum_dy, sum_dyx, max(1, x.shape[0] * x.shape[2]))
