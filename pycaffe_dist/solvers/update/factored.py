"""Factored updates: weights whose gradient is a product of two factors, some rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from pycaffe_dist.kernels.gemm import FixedProduct
from pycaffe_dist.solvers.engine import Factors
from pycaffe_dist.solvers.update.target import ArrayTarget, UpdateTarget
from pycaffe_dist.solvers.update.updater import Updater

# Rows of a gradient that stay in the last cache between the product and the update (4096x4096, 64
# rows of factors: 112 ms whole, 82 ms with 1 MiB, 55 ms with 4 MiB, when updates were slower).
BLOCK_BYTES = 4 << 20


class FactoredUpdates:
    """Updates targets of ``updater`` without their whole gradients ever being in memory.

    Half of what rebuilding and updating move to and from memory is the gradient.  Weights and
    history are the updater's own; the targets' gradients are left as they are.
    """

    def __init__(self, updater: Updater):
        self._updater = updater
        self._blocks: dict[int, _Blocks] = {}

    def update(self, index: int, factors: Factors, rate: float, iteration: int) -> float:
        """Update target ``index``; return the seconds of rebuilding.

        Gradients have the bits that they have in one product of the whole.
        """
        if index not in self._blocks:
            history = self._updater.method.history_of(index)
            self._blocks[index] = _Blocks(self._updater.targets[index], history)
        blocks = self._blocks[index]
        started = perf_counter()
        blocks.take(factors)
        seconds = perf_counter() - started
        for number, (target, history) in enumerate(blocks.targets):
            started = perf_counter()
            blocks.rebuild(number)
            seconds += perf_counter() - started
            self._updater.update_part(index, target, history, rate, iteration)
        return seconds


class _Blocks:
    """A target in blocks of rows, which share the memory of one block's gradient."""

    def __init__(self, whole: UpdateTarget, history: Sequence[np.ndarray]):
        weights = whole.weights
        rows, columns = weights.shape
        most = max(1, BLOCK_BYTES // max(1, weights[:1].nbytes))
        step = -(-rows // -(-rows // most))
        self._gradient = np.empty((step, columns), weights.dtype)
        self._left = np.empty((rows, 0), weights.dtype)
        self._product: FixedProduct | None = None
        self._firsts: list[int] = []
        self.targets: list[tuple[ArrayTarget, list[np.ndarray]]] = []  # with their history
        for begin in range(0, rows, step):
            # All products have ``step`` rows: the last one begins with rows that are updated.
            first, end = min(begin, rows - step), min(begin + step, rows)
            gradient = self._gradient[begin - first : end - first]
            settings = whole.lr_mult, whole.decay_mult, whole.regularization
            target = ArrayTarget(weights[begin:end], gradient, *settings)
            self.targets.append((target, [array[begin:end] for array in history]))
            self._firsts.append(first)

    def take(self, factors: Factors) -> None:
        """Lay the factors out for products of some rows."""
        (step, columns), samples = self._gradient.shape, len(factors.u)
        if self._product is None or self._left.shape[1] != samples:
            self._left = np.empty((len(self._left), samples), self._left.dtype)
            self._product = FixedProduct(step, columns, samples, self._left.dtype)
        np.multiply(factors.u.T, self._left.dtype.type(1 / factors.ranks), out=self._left)
        self._product.hold(factors.v)

    def rebuild(self, number: int) -> None:
        """Make the gradient of a block."""
        assert self._product is not None
        first = self._firsts[number]
        self._product.run(self._left[first : first + len(self._gradient)], self._gradient)
