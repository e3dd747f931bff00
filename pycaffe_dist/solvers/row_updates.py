"""Updates of weights whose gradient is rebuilt from factors: some rows at a time."""

from __future__ import annotations

from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from pycaffe_dist.exchange.engine import Factors
from pycaffe_dist.kernels.gemm import FixedProduct
from pycaffe_dist.net import Parameter
from pycaffe_dist.solvers.updating import Updater

# Rows of a gradient that stay in the last cache between the product and the update (4096x4096, 64
# rows of factors: 112 ms whole, 82 ms with 1 MiB, 55 ms with 4 MiB, when updates were slower).
BLOCK_BYTES = 4 << 20


class RowUpdates:
    """Updates parameter ``index`` of ``updater`` without its whole gradient ever being in memory.

    Half of what rebuilding and updating move to and from memory is the gradient.  Weights and
    history are the updater's own; the parameter's diff is left as it is.
    """

    def __init__(self, updater: Updater, index: int):
        parameter, method = updater.parameters[index], updater.method
        self._data = parameter.blob.data
        rows, columns = self._data.shape
        most = max(1, BLOCK_BYTES // max(1, self._data[:1].nbytes))
        step = -(-rows // -(-rows // most))
        # All products have ``step`` rows: the last one begins with rows that are updated already.
        begins = range(0, rows, step)
        self._spans = [
            (min(begin, rows - step), begin, min(begin + step, rows)) for begin in begins
        ]
        self._gradient = np.empty((step, columns), self._data.dtype)
        parts = [self._part(parameter, *span) for span in self._spans]
        self._updater = Updater(updater.param, cast("list[Parameter]", parts))
        for number in range(method.slots):
            history = method.slot(index, number)
            for part, (_, begin, end) in enumerate(self._spans):
                self._updater.method.borrow(part, number, history[begin:end])
        self._left = np.empty((rows, 0), self._data.dtype)
        self._product: FixedProduct | None = None

    def _part(self, parameter: Parameter, first: int, begin: int, end: int) -> Any:
        """Return what an updater reads of a parameter, for some of its rows."""
        data = self._data[begin:end]
        return SimpleNamespace(
            blob=SimpleNamespace(data=data, diff=self._gradient[begin - first : end - first]),
            shape=data.shape,
            lr_mult=parameter.lr_mult,
            decay_mult=parameter.decay_mult,
        )

    def update(self, factors: Factors, rate: float, iteration: int) -> float:
        """Update all rows; return the seconds of rebuilding.

        Gradients have the bits that they have in one product of the whole.
        """
        started = perf_counter()
        product = self._take(factors)
        seconds = perf_counter() - started
        step = len(self._gradient)
        for part, (first, _, _) in enumerate(self._spans):
            started = perf_counter()
            product.run(self._left[first : first + step], self._gradient)
            seconds += perf_counter() - started
            self._updater.update(part, rate, iteration)
        return seconds

    def _take(self, factors: Factors) -> FixedProduct:
        """Lay the factors out for products of some rows."""
        (step, columns), samples = self._gradient.shape, len(factors.u)
        if self._product is None or self._left.shape[1] != samples:
            self._left = np.empty((len(self._data), samples), self._data.dtype)
            self._product = FixedProduct(step, columns, samples, self._data.dtype)
        np.multiply(factors.u.T, self._data.dtype.type(1 / factors.ranks), out=self._left)
        self._product.hold(factors.v)
        return self._product
