"""Sums, products and maxima of arrays of one size, element by element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.activation import relu_backward
from pycaffe_dist.kernels.compiling import indices, jit
from pycaffe_dist.kernels.elementwise import blockwise
from pycaffe_dist.threads import parallel_for

_GRAIN = 16384
# Arrays that are summed in one pass.
_MOST = 4


@jit
def _sums(begin, end, y, a, b, c, d, factors, count, slope, one):
    fa, fb, fc, fd = factors
    if count == 1:
        for i in indices(begin, end):
            result = fa * a[i]
            y[i] = result * (one if result > 0 else slope)
    elif count == 2:
        for i in indices(begin, end):
            result = fa * a[i] + fb * b[i]
            y[i] = result * (one if result > 0 else slope)
    elif count == 3:
        for i in indices(begin, end):
            result = fa * a[i] + fb * b[i] + fc * c[i]
            y[i] = result * (one if result > 0 else slope)
    else:
        for i in indices(begin, end):
            result = fa * a[i] + fb * b[i] + fc * c[i] + fd * d[i]
            y[i] = result * (one if result > 0 else slope)


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
    if sign is not None:
        relu_backward(sign, dy, dy, slope)
    for dx, coefficient in reversed(list(zip(gradients, coefficients))):
        weighted_sum(dx, [dy], [coefficient])


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
