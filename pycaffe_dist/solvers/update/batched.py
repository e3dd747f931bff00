"""Batched updates: all parameters at once, in one launch on a GPU or one chain of loops."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from pycaffe_dist.device import use
from pycaffe_dist.gpu.repeating import Repeating
from pycaffe_dist.kernels.update import UpdateOfMany
from pycaffe_dist.net import Parameter
from pycaffe_dist.profiling import Kind, Profiler
from pycaffe_dist.solvers.engine import Engine
from pycaffe_dist.solvers.update.updater import Updater


class BatchedUpdates:
    """Updates ``parameters``, the targets of ``updater``, once all mean gradients are there.

    It knows no larc_policy.  With ``graph_memory``, a `GPU.graph_memory`, the launch is repeated as
    a CUDA graph.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        engine: Engine,
        updater: Updater[Parameter],
        profiler: Profiler,
        graph_memory: Any = None,
    ):
        self._parameters, self._engine, self._updater = parameters, engine, updater
        self._profiler = profiler
        self._launch: UpdateOfMany | None = None
        self._arrays: list[tuple] = []  # of the launch
        self._settings: list[tuple[float, float, float]] = []
        self._indices: list[int] = []  # of the parameters
        self._values: tuple[float, ...] = ()  # what changes between iterations
        self._repeated: Repeating | None = None
        if graph_memory is not None:
            gpu: Any = updater.device
            self._repeated = Repeating(gpu, graph_memory, "the update", [self._update])

    def run(self, rate: float, iteration: int, clipping: float) -> None:
        """Update all parameters that no exchange updates."""
        indices = []
        for index in reversed(range(len(self._parameters))):
            self._engine.wait(self._parameters[index])
            if not self._engine.updates(self._parameters[index]):
                indices.append(index)
        if not indices:
            return
        method, started = self._updater.method, perf_counter()
        rate *= method.correction(iteration)
        self._indices = indices
        self._values = (self._updater.scale(clipping), rate, *method.scalars(iteration))
        with use(self._updater.device):
            self._show(updated=False)
            if self._repeated is None:
                self._update()
            else:
                self._repeated.begin([self._parameters[index].blob.layout for index in indices])
                self._repeated.run(0)
            self._show(updated=True)
        if record := self._profiler.record:
            record((Kind.UPDATE, "all", started, perf_counter(), 0))

    def _show(self, updated: bool) -> None:
        if watch := self._updater.watch:
            for index in self._indices:
                watch(index, self._updater.targets[index], updated)

    def _update(self) -> None:
        self._launch_for(self._indices).run(lambda: self._values)

    def _launch_for(self, indices: Sequence[int]) -> UpdateOfMany:
        """Return the last launch, or a new one if an array or a setting is another."""
        arrays = [self._updater.method.arrays(index) for index in indices]
        targets = [self._updater.targets[index] for index in indices]
        settings = [(*self._updater.decays(each), each.lr_mult) for each in targets]
        same = settings == self._settings and _are_the_same(arrays, self._arrays)
        if self._launch is None or not same:
            self._launch = UpdateOfMany(self._updater.method.step, arrays, settings)
            self._arrays, self._settings = arrays, settings
        return self._launch


def _are_the_same(arrays: list[tuple], others: list[tuple]) -> bool:
    """Tell whether all arrays are the same objects."""
    return len(arrays) == len(others) and all(
        one is other for own, theirs in zip(arrays, others) for one, other in zip(own, theirs)
    )
