"""Sums, products and maxima of arrays of one size, element by element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.elementwise import blockwise


@kernel
def weighted_sum(
    y: np.ndarray, values: Sequence[np.ndarray], coefficients: Sequence[float]
) -> None:
    """Set y to the sum of the values, each times its coefficient; y may be the first value."""

    def add(y: np.ndarray, *values: np.ndarray) -> None:
        first, *others = (
            value if coefficient == 1 else value * coefficient
            for value, coefficient in zip(values, coefficients)
        )
        if not others:
            np.copyto(y, first)
            return
        np.add(first, others[0], out=y)
        for other in others[1:]:
            y += other

    blockwise(add, y, *values)


@kernel
def product(y: np.ndarray, values: Sequence[np.ndarray]) -> None:
    """Set y to the product of two and more values; y may be the first."""
    blockwise(_product, y, *values)


@kernel
def maximum(y: np.ndarray, winner: np.ndarray, values: Sequence[np.ndarray]) -> None:
    """Set y to the maximum of two and more values, and winner (int32) to the index of its origin.

    As in Caffe, the second wins against an equal first, later ones must be larger.
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
