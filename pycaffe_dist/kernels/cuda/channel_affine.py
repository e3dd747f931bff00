"""Per-channel shifts, scales and statistics on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist import device
from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.division import division

_cu = kernels("channel_affine")

# A block sums at least so many elements, and there are at most so many blocks as keep a GPU busy.
_ELEMENTS_PER_BLOCK = 4096
_BLOCKS = 2048
_ROWS_PER_BLOCK = 256
# CUDA's limit for a grid.
_MOST_IN_SECOND_AXIS = 65535
# Threads of a block that joins the blocks' sums.
_JOINING_THREADS = 64


def affine(x: Any, y: Any, shift: Any, scale: Any, bias: Any, slope: float | None = None) -> None:
    """See `pycaffe_dist.kernels.channel_affine.affine`."""
    _affine(x, y, None, shift, scale, bias, slope)


def affine_in_place(
    x: Any, kept: Any, shift: Any, scale: Any, bias: Any, slope: float | None = None
) -> None:
    """See `pycaffe_dist.kernels.channel_affine.affine_in_place`."""
    _affine(x, x, kept, shift, scale, bias, slope)


def _affine(x: Any, y: Any, kept: Any, shift: Any, scale: Any, bias: Any, slope: Any) -> None:
    slope = 1.0 if slope is None else slope
    _cu.affine(x.size, x, y, kept, shift, scale, bias, slope, *_layout(x))


def gradient_sums(x: Any, dy: Any, shift: Any, sum_dy: Any, sum_dyx: Any) -> None:
    """See `pycaffe_dist.kernels.channel_affine.gradient_sums`."""
    join_gradient_sums(x, dy, shift, sum_dy, sum_dyx)


def rectified_gradient_sums(
    x: Any, dy: Any, shift: Any, scale: Any, bias: Any, slope: float, sum_dy: Any, sum_dyx: Any
) -> None:
    """See `pycaffe_dist.kernels.channel_affine.rectified_gradient_sums`."""
    join_gradient_sums(x, dy, shift, sum_dy, sum_dyx, rectifier=(scale, bias, slope))


def statistics(x: Any, mean: Any, variance: Any) -> None:
    """See `pycaffe_dist.kernels.channel_affine.statistics`."""
    join_statistics(x, mean, variance)


# What the joining kernels leave out: no gradients of a bias and a scale, no terms, …
_NO_AFFINE = None, None, None, False, False
_NO_TERMS = None, False, None, None
_NO_RECTIFIER = None, None, 1.0
_NO_RUNNING_SUMS = None, None, None, 0.0, 0.0, 0.0
_NO_SCALES = 0.0, None, None, None, None


def join_gradient_sums(
    x: Any,
    dy: Any,
    shift: Any,
    sum_dy: Any,
    sum_dyx: Any,
    affine: tuple | None = None,
    terms: tuple | None = None,
    rectifier: tuple | None = None,
) -> None:
    """See `pycaffe_dist.kernels.normalization.backward_sums`; the tuples are kernel arguments."""
    affine, terms, rectifier = affine or _NO_AFFINE, terms or _NO_TERMS, rectifier or _NO_RECTIFIER
    outer, channels, inner = x.shape
    parts, stretch = _parts(x.shape)
    first, second = device.xp().empty((2, parts, channels))
    _sums(x, dy, (shift, *rectifier), first, second, None, parts, stretch)
    sums, sizes = (first, second, sum_dy, sum_dyx), (float(max(1, outer * inner)), channels, parts)
    _cu.join_sums.blocks(channels, *sums, *affine, *terms, *sizes, threads=_JOINING_THREADS)


def join_statistics(
    x: Any,
    mean: Any,
    variance: Any,
    running: tuple | None = None,
    scales: tuple = _NO_SCALES,
) -> None:
    """Set mean, variance and what follows; ``running`` and ``scales`` are kernel arguments."""
    outer, channels, inner = x.shape
    parts, stretch = _parts(x.shape)
    scratch = device.xp().empty((2 * parts + 1, channels))
    first, second, pivot = scratch[:parts], scratch[parts:-1], scratch[-1]
    _sums(x, None, (None, *_NO_RECTIFIER), first, second, pivot, parts, stretch)
    sums, sizes = (first, second, pivot, mean, variance), (outer * inner, channels, parts)
    totals = running or _NO_RUNNING_SUMS
    _cu.join_statistics.blocks(channels, *sums, *totals, *scales, *sizes, threads=_JOINING_THREADS)


def normalize_gradient(
    x: Any,
    dy: Any,
    dx: Any,
    shift: Any,
    scale: Any,
    offset: Any,
    slope: Any,
    bias: Any = None,
    rectifier_slope: float | None = None,
) -> None:
    """See `pycaffe_dist.kernels.channel_affine.normalize_gradient`."""
    rectifier = (None, 1.0) if rectifier_slope is None else (bias, rectifier_slope)
    vectors = shift, scale, offset, slope
    _cu.normalize_gradient(x.size, x, dy, dx, *vectors, *rectifier, *_layout(x))


def _layout(x: Any) -> tuple[int, ...]:
    _, channels, inner = x.shape
    return *division(max(1, inner)), *division(max(1, channels)), channels, x.size


def _parts(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of parts of a channel's elements, and their length."""
    outer, channels, inner = shape
    count = outer * inner
    if inner == 1:
        most = min(_BLOCKS * 32 // max(1, channels), _MOST_IN_SECOND_AXIS)
        parts = min(-(-count // _ROWS_PER_BLOCK), max(1, most))
    else:
        parts = min(-(-count // _ELEMENTS_PER_BLOCK), max(1, _BLOCKS // max(1, channels)))
    parts = max(1, parts)
    return parts, -(-count // parts)


def _sums(
    x: Any,
    dy: Any,
    rectifier: tuple,
    first: Any,
    second: Any,
    pivot: Any,
    parts: int,
    stretch: int,
) -> None:
    """Run `sums`; the ``rectifier`` is shift, scale, bias and slope."""
    outer, channels, inner = x.shape
    arrays = x, dy, *rectifier, first, second, pivot
    if inner == 1:
        grid = -(-channels // 32), parts
        if channels:
            _cu.sums_of_columns.grid(grid, (32, 8), *arrays, channels, outer, stretch)
        return
    sizes = channels, inner, outer * inner, stretch, parts
    _cu.sums.blocks(channels * parts, *arrays, *division(max(1, inner)), *sizes)
