"""Immediate updates: each parameter by itself, as soon as its mean gradient is there."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from pycaffe_dist.net import Parameter
from pycaffe_dist.profiling import Kind, Profiler
from pycaffe_dist.solvers.engine import Engine
from pycaffe_dist.solvers.update.factored import FactoredUpdates
from pycaffe_dist.solvers.update.updater import Updater


class ImmediateUpdates:
    """Updates ``parameters``, the targets of ``updater``, that no exchange updates.

    If there is ``factored``, it updates the parameters whose gradients come as factors.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        engine: Engine,
        updater: Updater[Parameter],
        profiler: Profiler,
    ):
        self.parameters, self.engine = parameters, engine
        self._updater, self._profiler = updater, profiler
        self.factored: FactoredUpdates | None = None

    def run(self, rate: float, iteration: int, clipping: float) -> None:
        """Update all parameters; the last layers' gradients are the first to arrive."""
        for index in reversed(range(len(self.parameters))):
            self.update(index, rate, iteration, clipping)

    def update(self, index: int, rate: float, iteration: int, clipping: float) -> None:
        """Update a parameter once its mean gradient is there, unless an exchange has done it."""
        parameter = self.parameters[index]
        factors = self.engine.wait(parameter, rebuild=self.factored is None)
        if self.engine.updates(parameter):
            return
        started = updating = perf_counter()
        if factors is None or self.factored is None:
            self._updater.update(index, rate, iteration, clipping)
        else:
            updating += self.factored.update(index, factors, rate, iteration)
        record = self._profiler.record
        if record:
            if factors is not None:  # they took turns, and are recorded one after the other
                record((Kind.REBUILD, parameter.key, started, updating, 0))
            record((Kind.UPDATE, parameter.key, updating, perf_counter(), 0))
