"""BatchNorm's work on channels: their statistics, and what follows from them.

Statistics and sums are float64; running sums, shifts, scales and the gradient's terms are of the
parameters' dtype.  Data is (outer, channels, inner).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.channel_affine import (
    affine,
    affine_in_place,
    gradient_sums,
    grain_of,
    normalize_gradient,
    rectified_gradient_sums,
    statistics,
    unit_for,
)
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.jit.channel_rows import AffineRows, GradientRows, SumRows
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.constants import constants, factors
from pycaffe_dist.threads import in_every_pass, parallel_for

# Bytes of one array's channels that are worked on at a time, while they stay in the second-level
# cache.
BLOCK_BYTES = 1 << 17
_NONE = np.zeros(0, np.float32)


class Statistics(NamedTuple):
    """The mean and variance of each channel, and what follows from them.

    ``shift`` is the mean, ``scale`` 1 / sqrt(variance + eps), and ``product`` the scale times a
    factor.
    """

    mean: np.ndarray
    variance: np.ndarray
    shift: np.ndarray
    scale: np.ndarray
    product: np.ndarray

    def follow(self, eps: float, factor: np.ndarray | None) -> None:
        """Set all from mean and variance; without a factor the product is the scale."""
        self.shift[...] = self.mean
        self.scale[...] = 1 / np.sqrt(self.variance + eps)
        np.multiply(self.scale, 1 if factor is None else factor, out=self.product)


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


class Affine(NamedTuple):
    """A factor, or None for 1, and a bias for each channel, and maybe a rectifier's slope."""

    factor: np.ndarray | None
    bias: np.ndarray
    slope: float | None


@kernel
def normalize(
    x: np.ndarray,
    y: np.ndarray,
    kept: np.ndarray | None,
    result: Statistics,
    running: RunningSums | None,
    eps: float,
    following: Affine,
) -> None:
    """Set y to (x - mean) / sqrt(variance + eps)·factor + bias, rectified if there is a slope.

    Sets the statistics to those of x, and adds them to the running sums.  y may be x; ``kept``, if
    given, then gets a copy of x.
    """
    unit = unit_for(x)
    if unit is None:
        statistics(x, result.mean, result.variance)
        in_every_pass(_follow, result, running, eps, following.factor)
        vectors = result.shift, result.product, following.bias, following.slope
        if kept is None:
            affine(x, y, *vectors)
        else:
            affine_in_place(x, kept, *vectors)
        return
    _, channels, inner = x.shape
    kernels = (
        address_of(SumRows(inner), unit),
        address_of(AffineRows(inner, kept is not None), unit),
    )
    sums = running or RunningSums(_NONE, _NONE, None, 0.0, 0.0, 0.0)
    parallel_for(
        _normalize_channels,
        channels,
        x,
        y,
        x if kept is None else kept,
        result,
        (sums.means, sums.variances, _NONE if sums.weight is None else sums.weight),
        (sums.keep, sums.share, sums.unbiased, eps),
        _NONE if following.factor is None else following.factor,
        following.bias,
        factors(1.0 if following.slope is None else following.slope),
        constants(*kernels, unit.lanes, _block_of(x)),
        grain=grain_of(x, channels),
    )


def _follow(
    result: Statistics, running: RunningSums | None, eps: float, factor: np.ndarray | None
) -> None:
    if running is not None:
        running.add(result.mean, result.variance)
    result.follow(eps, factor)


def _block_of(x: np.ndarray) -> int:
    """Return how many channels are worked on at a time."""
    return max(1, BLOCK_BYTES * x.shape[1] // max(1, x.nbytes))


@jit
def _total(sums, lanes):
    total = 0.0
    for lane in range(lanes):
        total += sums[lane]
    return total


@jit
def _add_rows(kernel, x, dy, images, first, vectors, low, sums):
    """Set ``sums`` (channels, 2, lanes) to those of `SumRows` over some images."""
    _, channels, inner = x.shape
    shift, scale, bias = vectors
    sums[:] = 0
    for n in range(images):
        at = 4 * (n * channels + first) * inner
        call(
            kernel,
            len(sums),
            x.ctypes.data + at,
            dy.ctypes.data + at,
            shift.ctypes.data + 4 * first,
            scale.ctypes.data + 4 * first,
            bias.ctypes.data + 4 * first,
            sums.ctypes.data,
            low.ctypes.data,
        )


@jit
def _measure_channels(x, first, result, low, kernel, sums, lanes):
    """Set mean and variance of ``len(sums)`` channels.

    Differences from the mean of the first image are summed, so that no digits are lost.
    """
    outer, _, inner = x.shape
    mean, variance, shift, _, _ = result
    vectors = (shift, shift, shift)
    for i in range(len(sums)):
        shift[first + i] = x[0, first + i, 0]
    if outer > 1:
        _add_rows(kernel, x, x, 1, first, vectors, low, sums)
        for i in range(len(sums)):
            shift[first + i] += x.dtype.type(_total(sums[i, 0], lanes) / inner)
    _add_rows(kernel, x, x, outer, first, vectors, low, sums)
    for i in range(len(sums)):
        offset = _total(sums[i, 0], lanes) / (outer * inner)
        squares = _total(sums[i, 1], lanes) / (outer * inner)
        mean[first + i] = shift[first + i] + offset
        variance[first + i] = max(0.0, squares - offset * offset)


@jit
def _normalize_channels(
    begin, end, x, y, kept, result, running, numbers, factor, bias, low, settings
):
    outer, channels, inner = x.shape
    sum_rows, affine_rows, lanes, block = settings
    means, variances, weight = running
    keep, share, unbiased, eps = numbers
    mean, variance, shift, scale, product = result
    sums = np.empty((min(block, end - begin), 2, lanes))
    if begin == 0 and weight.size:
        weight[0] = weight[0] * keep + share
    for first in range(begin, end, block):
        count = min(block, end - first)
        _measure_channels(x, first, result, low, sum_rows, sums[:count], lanes)
        for c in range(first, first + count):
            if means.size:
                means[c] = means[c] * keep + mean[c] * share
                variances[c] = variances[c] * keep + variance[c] * unbiased * share
            shift[c], scale[c] = mean[c], 1 / np.sqrt(variance[c] + eps)
            product[c] = scale[c] * factor[c] if factor.size else scale[c]
        for n in range(outer):
            at, unused = 4 * (n * channels + first) * inner, shift.ctypes.data
            call(
                affine_rows,
                count,
                x.ctypes.data + at,
                y.ctypes.data + at,
                kept.ctypes.data + at,
                shift.ctypes.data + 4 * first,
                product.ctypes.data + 4 * first,
                bias.ctypes.data + 4 * first,
                unused,
                unused,
                low.ctypes.data,
            )


@kernel
def recall(
    means: np.ndarray,
    variances: np.ndarray,
    weight: np.ndarray | None,
    eps: float,
    result: Statistics,
    factor: np.ndarray | None = None,
) -> None:
    """Set mean and variance to running sums over their weight (1,), or to 0 if that is 0.

    Without a weight the sums are the statistics.  All else follows as in `normalize`.
    """
    in_every_pass(_recall, means, variances, weight, eps, result, factor)


def _recall(
    means: np.ndarray,
    variances: np.ndarray,
    weight: np.ndarray | None,
    eps: float,
    result: Statistics,
    factor: np.ndarray | None,
) -> None:
    total = 1.0 if weight is None else float(weight[0])
    share = 1 / total if total else 0.0
    np.multiply(means, share, out=result.mean)
    np.multiply(variances, share, out=result.variance)
    result.follow(eps, factor)


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
    """Set sums of dy and of dy·(x - shift) per channel, and pass them on.

    With a ``rectifier`` they are the sums of `channel_affine.rectified_gradient_sums`.
    """
    if rectifier is None:
        gradient_sums(x, dy, shift, sum_dy, sum_dyx)
    else:
        rectified_gradient_sums(x, dy, shift, *rectifier, sum_dy, sum_dyx)
    count = max(1, x.shape[0] * x.shape[2])
    in_every_pass(_pass_on, sum_dy, sum_dyx, count, affine, terms)


def _pass_on(
    sum_dy: np.ndarray,
    sum_dyx: np.ndarray,
    count: int,
    affine: AffineGradients | None,
    terms: GradientTerms | None,
) -> None:
    if affine is not None:
        affine.take(sum_dy, sum_dyx)
    if terms is not None:
        terms.find(sum_dy, sum_dyx, count)


@kernel
def normalize_backward(
    x: np.ndarray,
    dy: np.ndarray,
    dx: np.ndarray,
    result: Statistics,
    sums: tuple[np.ndarray, np.ndarray],
    gradients: AffineGradients,
    terms: GradientTerms,
    following: Affine,
) -> None:
    """Set dx of `normalize`, which may be dy, and the gradients of factor and bias.

    The ``sums`` and ``terms`` are those of `backward_sums`.
    """
    unit, slope = unit_for(x), following.slope
    if unit is None:
        rectifier = None if slope is None else Rectifier(result.product, following.bias, slope)
        backward_sums(x, dy, result.shift, *sums, gradients, terms, rectifier)
        vectors = result.shift, result.product, terms.offset, terms.slope
        normalize_gradient(x, dy, dx, *vectors, following.bias, slope)
        return
    _, channels, inner = x.shape
    kernels = (
        address_of(SumRows(inner, True, slope is not None), unit),
        address_of(GradientRows(inner, slope is not None), unit),
    )
    parallel_for(
        _spread_channels,
        channels,
        x,
        dy,
        dx,
        result,
        (_NONE if gradients.bias is None else gradients.bias),
        (_NONE if gradients.scale is None else gradients.scale),
        (terms.offset, terms.slope),
        following.bias,
        factors(1.0 if slope is None else slope),
        constants(*kernels, unit.lanes, _block_of(x), gradients.bias_adds, gradients.scale_adds),
        grain=grain_of(x, channels),
    )


@jit
def _spread_channels(begin, end, x, dy, dx, result, d_bias, d_factor, terms, bias, low, settings):
    outer, channels, inner = x.shape
    sum_rows, gradient_rows, lanes, block, bias_adds, factor_adds = settings
    _, _, shift, scale, product = result
    offset, slope = terms
    sums = np.empty((min(block, end - begin), 2, lanes))
    for first in range(begin, end, block):
        count = min(block, end - first)
        vectors = (shift, product, bias)
        _add_rows(sum_rows, x, dy, outer, first, vectors, low, sums[:count])
        for c in range(first, first + count):
            own = sums[c - first]
            sum_dy, sum_dyx = _total(own[0], lanes), _total(own[1], lanes)
            if d_bias.size:
                d_bias[c] = sum_dy + (d_bias[c] if bias_adds else 0.0)
            if d_factor.size:
                d_factor[c] = sum_dyx * scale[c] + (d_factor[c] if factor_adds else 0.0)
            offset[c] = sum_dy / (outer * inner)
            slope[c] = sum_dyx / (outer * inner) * scale[c] * scale[c]
        for n in range(outer):
            at = 4 * (n * channels + first) * inner
            call(
                gradient_rows,
                count,
                x.ctypes.data + at,
                dy.ctypes.data + at,
                dx.ctypes.data + at,
                shift.ctypes.data + 4 * first,
                product.ctypes.data + 4 * first,
                bias.ctypes.data + 4 * first,
                offset.ctypes.data + 4 * first,
                slope.ctypes.data + 4 * first,
                low.ctypes.data,
            )
