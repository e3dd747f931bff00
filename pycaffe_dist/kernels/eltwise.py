"""Sums, products and maxima of arrays of one size, element by element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.elementwise import blockwise
from pycaffe_dist.threads import parallel_for

_GRAIN = 16384
# Elements that stay in the first-level cache.
_BLOCK = 1024
# Arrays that are summed, or set, in one pass.
_MOST = 4


@jit
def _sums(begin, end, y, a, b, c, d, factors, count, slope, one):
    fa, fb, fc, fd = factors
    # Loops that read and write one array under two names are slow: in place, sums are copied.
    in_place = y.ctypes.data == a.ctypes.data
    block = _BLOCK if in_place else end - begin
    sums = np.empty(_BLOCK, y.dtype)
    for start in range(begin, end, block):
        stop = min(end, start + block)
        pa, pb, pc, pd = a[start:stop], b[start:stop], c[start:stop], d[start:stop]
        target = y[start:stop]
        part = sums[: stop - start] if in_place else target
        if count == 1:
            for i in range(part.size):
                result = fa * pa[i]
                part[i] = result * (one if result > 0 else slope)
        elif count == 2:
            for i in range(part.size):
                result = fa * pa[i] + fb * pb[i]
                part[i] = result * (one if result > 0 else slope)
        elif count == 3:
            for i in range(part.size):
                result = fa * pa[i] + fb * pb[i] + fc * pc[i]
                part[i] = result * (one if result > 0 else slope)
        else:
            for i in range(part.size):
                result = fa * pa[i] + fb * pb[i] + fc * pc[i] + fd * pd[i]
                part[i] = result * (one if result > 0 else slope)
        if in_place:
            for i in range(part.size):
                target[i] = part[i]


@jit
def _rectify(begin, end, sign, dy, slope, one):
    sign, dy = sign[begin:end], dy[begin:end]
    for i in range(dy.size):
        dy[i] = dy[i] * (one if sign[i] > 0 else slope)


@jit
def _multiply(begin, end, dy, dx, factor):
    dy, dx = dy[begin:end], dx[begin:end]
    if dy.ctypes.data == dx.ctypes.data:
        if factor != 1:
            for i in range(dy.size):
                dy[i] *= factor
    else:
        for i in range(dy.size):
            dx[i] = factor * dy[i]


@jit
def _gradients(begin, end, dy, sign, rectifies, slope, one, targets, factors, count):
    for start in range(begin, end, _BLOCK):
        stop = min(end, start + _BLOCK)
        if rectifies:
            _rectify(start, stop, sign, dy, slope, one)
        for k in range(count - 1, -1, -1):
            _multiply(start, stop, dy, targets[k], factors[k])


def changes_nothing(slope: float | None, coefficients: Sequence[float]) -> bool:
    """Tell whether a weighted sum is its only value."""
    return slope is None and len(coefficients) == 1 and coefficients[0] == 1


@kernel
def weighted_sum(
    y: np.ndarray,
    values: Sequence[np.ndarray],
    coefficients: Sequence[float],
    slope: float | None = None,
) -> None:
    """Set y to the sum of the values, each times its coefficient; y may be the first value.

    With a ``slope``, multiply results that are not positive by it.
    """
    cast = y.dtype.type
    arrays, factors = list(values), list(coefficients)
    if changes_nothing(slope, factors) and y.ctypes.data == arrays[0].ctypes.data:
        return
    while True:
        last = len(arrays) <= _MOST
        count = min(_MOST, len(arrays))
        # Missing arrays are not read, but the compiler needs their types.
        flat = [array.reshape(-1) for array in (*arrays[:count], *[y] * (_MOST - count))]
        scalars = tuple(cast(factor) for factor in (*factors[:count], *[0] * (_MOST - count)))
        ends = cast(1 if slope is None or not last else slope), cast(1)
        parallel_for(_sums, y.size, y.reshape(-1), *flat, scalars, count, *ends, grain=_GRAIN)
        if last:
            return
        arrays, factors = [y, *arrays[_MOST:]], [1, *factors[_MOST:]]


@kernel
def sum_gradients(
    dy: np.ndarray,
    gradients: Sequence[np.ndarray],
    coefficients: Sequence[float],
    sign: np.ndarray | None = None,
    slope: float = 1.0,
) -> None:
    """Set each gradient of a weighted sum to dy times its coefficient; the first may be dy.

    With a ``sign``, dy is first multiplied by ``slope`` where sign is not positive.
    """
    cast, count = dy.dtype.type, len(gradients)
    only = sign is None and changes_nothing(None, coefficients)
    if only and gradients[0].ctypes.data == dy.ctypes.data:
        return
    ends = sign is not None, cast(slope), cast(1)
    flat, mask = dy.reshape(-1), (dy if sign is None else sign).reshape(-1)
    # From the last to the first, which may be in dy's place.
    for first in range((max(count, 1) - 1) // _MOST * _MOST, -1, -_MOST):
        own = [dx.reshape(-1) for dx in gradients[first : first + _MOST]]
        missing = _MOST - len(own)
        factors = *map(cast, coefficients[first : first + _MOST]), *[cast(1)] * missing
        targets = *own, *[flat] * missing
        args = flat, mask, *ends, targets, factors, len(own)
        parallel_for(_gradients, dy.size, *args, grain=_GRAIN)
        ends = False, *ends[1:]


@jit
def _scaled_sum(begin, end, factors, x, b, y):
    for row in range(begin, end):
        factor, source, other, target = factors[row], x[row], b[row], y[row]
        for i in range(target.size):
            target[i] = factor * source[i] + other[i]


@kernel
def scaled_sum(factors: np.ndarray, x: np.ndarray, b: np.ndarray, y: np.ndarray) -> None:
    """Set the rows of y to those of x, each times its factor, plus those of b."""
    rows = len(factors)
    grain = max(1, _GRAIN * rows // max(1, x.size))
    parallel_for(_scaled_sum, rows, factors, x, b, y, grain=grain)


@kernel
def product(y: np.ndarray, values: Sequence[np.ndarray]) -> None:
    """Set y to the product of two and more values; y may be the first."""
    blockwise(_product, y, *values)


@kernel
def maximum(y: np.ndarray, winner: np.ndarray, values: Sequence[np.ndarray]) -> None:
    """Set y to the maximum of two and more values, and winner (int32) to the index of its origin.

    As in Caffe, the second value wins against an equal first one; later ones must be larger.
    """
    blockwise(_maximum, y, winner, *values)


@kernel
def maximum_gradient(dy: np.ndarray, winner: np.ndarray, index: int, dx: np.ndarray) -> None:
    """Set dx to dy where the value with this index was the maximum, else to 0."""
    np.multiply(dy, winner == index, out=dx)


def _product(y: np.ndarray, first: np.ndarray, second: np.ndarray, *others: np.ndarray) -> None:
    np.multiply(first, second, out=y)
    for other in others:
        y *= other


def _maximum(
    y: np.ndarray, winner: np.ndarray, first: np.ndarray, second: np.ndarray, *others: np.ndarray
) -> None:
    winner[...] = ~(first > second)
    np.copyto(y, np.where(winner, second, first))
    for index, other in enumerate(others, 2):
        larger = other > y
        winner[larger] = index
        np.copyto(y, other, where=larger)
