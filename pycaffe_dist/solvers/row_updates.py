"""Updates of weights whose gradient is rebuilt from factors: some rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from pycaffe_dist.net import Parameter
from pycaffe_dist.solvers.updating import Updater

# Rows of a gradient that stay in the last cache between the product and the update (4096x4096, 64
# rows of factors: 112 ms whole, 82 ms with 1 MiB, 55 ms with 4 MiB).
BLOCK_BYTES = 4 << 20
# With fewer rows, each product's own preparations cost more than the cache saves (32 rows of
# factors, weights with rows of 9216: 110 ms with 128 rows, 92 with 384, 93 whole).
FEWEST_ROWS = 384

# Makes the rows [begin, end) of a mean gradient.
Rebuild = Callable[[int, int, np.ndarray], None]


class RowUpdates:
    """Updates parameter ``index`` of ``updater`` without its whole gradient ever being in memory.

    Half of what rebuilding and updating move to and from memory is the gradient.  Weights and
    history are the updater's own; the parameter's diff is left as it is.
    """

    def __init__(self, updater: Updater, index: int):
        parameter, method = updater.parameters[index], updater.method
        self._data = parameter.blob.data
        rows, columns = self._data.shape
        step = max(FEWEST_ROWS, BLOCK_BYTES // max(1, self._data[:1].nbytes))
        self._spans = [(begin, min(begin + step, rows)) for begin in range(0, rows, step)]
        self._gradient = np.empty((min(step, rows), columns), self._data.dtype)
        parts = [self._part(parameter, begin, end) for begin, end in self._spans]
        self._updater = Updater(updater.param, cast("list[Parameter]", parts))
        for number in range(method.slots):
            history = method.slot(index, number)
            for part, (begin, end) in enumerate(self._spans):
                self._updater.method.borrow(part, number, history[begin:end])

    def _part(self, parameter: Parameter, begin: int, end: int) -> Any:
        """Return what an updater reads of a parameter, for some of its rows."""
        data = self._data[begin:end]
        return SimpleNamespace(
            blob=SimpleNamespace(data=data, diff=self._gradient[: end - begin]),
            shape=data.shape,
            lr_mult=parameter.lr_mult,
            decay_mult=parameter.decay_mult,
        )

    def update(self, rebuild: Rebuild, rate: float, iteration: int) -> float:
        """Update all rows; return the seconds of rebuilding."""
        seconds = 0.0
        for part, (begin, end) in enumerate(self._spans):
            started = perf_counter()
            rebuild(begin, end, self._gradient[: end - begin])
            seconds += perf_counter() - started
            self._updater.update(part, rate, iteration)
        return seconds
