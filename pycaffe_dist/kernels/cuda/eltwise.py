"""Sums, products and maxima of arrays on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.division import division
from pycaffe_dist.kernels.eltwise import changes_nothing

_cu = kernels("eltwise")
# Operands of a kernel.
_MOST = 4


def weighted_sum(
    y: Any, values: Sequence[Any], coefficients: Sequence[float], slope: float | None = None
) -> None:
    """See `pycaffe_dist.kernels.eltwise.weighted_sum`."""
    values, factors = list(values), list(coefficients)
    if changes_nothing(slope, factors) and y.data.ptr == values[0].data.ptr:
        return
    while True:
        missing, last = max(0, _MOST - len(values)), len(values) <= _MOST
        arrays = *values[:_MOST], *[None] * missing
        scalars = *factors[:_MOST], *[0.0] * missing, 1.0 if slope is None or not last else slope
        _cu.weighted_sum(y.size, y, *arrays, *scalars, y.size)
        if last:
            return
        values, factors = [y, *values[_MOST:]], [1.0, *factors[_MOST:]]


def sum_gradients(
    dy: Any,
    gradients: Sequence[Any],
    coefficients: Sequence[float],
    sign: Any = None,
    slope: float = 1.0,
) -> None:
    """See `pycaffe_dist.kernels.eltwise.sum_gradients`."""
    # What lies in dy's place comes last, because the others are made from dy.
    targets = sorted(zip(gradients, coefficients), key=lambda each: _is_at(each[0], dy))
    overwrites = bool(targets) and _is_at(targets[-1][0], dy)
    if sign is not None and not overwrites:
        targets.append((dy, 1.0))
    elif sign is None and overwrites and targets[-1][1] == 1:
        targets.pop()
    for start in range(0, len(targets), _MOST):
        own = targets[start : start + _MOST]
        missing = _MOST - len(own)
        arrays = *(dx for dx, _ in own), *[None] * missing
        factors = *(factor for _, factor in own), *[0.0] * missing
        _cu.sum_gradients(dy.size, dy, sign, *arrays, *factors, slope, dy.size)


def _is_at(array: Any, other: Any) -> bool:
    return array.data.ptr == other.data.ptr


def scaled_sum(factors: Any, x: Any, b: Any, y: Any) -> None:
    """See `pycaffe_dist.kernels.eltwise.scaled_sum`."""
    _cu.scaled_sum(y.size, factors, x, b, y, *division(max(1, x.shape[1])), y.size)


def product(y: Any, values: Sequence[Any]) -> None:
    """See `pycaffe_dist.kernels.eltwise.product`."""
    values = list(values)
    while True:
        missing = max(0, _MOST - len(values))
        _cu.product(y.size, y, *values[:_MOST], *[None] * missing, y.size)
        if len(values) <= _MOST:
            return
        values = [y, *values[_MOST:]]


def maximum(y: Any, winner: Any, values: Sequence[Any]) -> None:
    """See `pycaffe_dist.kernels.eltwise.maximum`."""
    first, second, *others = values
    _cu.maximum(y.size, y, winner, first, second, y.size)
    for index, other in enumerate(others, 2):
        _cu.larger(y.size, y, winner, other, index, y.size)


def maximum_gradient(dy: Any, winner: Any, index: int, dx: Any) -> None:
    """See `pycaffe_dist.kernels.eltwise.maximum_gradient`."""
    _cu.maximum_gradient(dx.size, dy, winner, index, dx, dx.size)
