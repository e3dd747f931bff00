"""Batched updates: all parameters in one launch, for on a GPU launches take the host's time."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from pycaffe_dist.device import use
from pycaffe_dist.kernels.update import UpdateOfMany
from pycaffe_dist.net import Parameter
from pycaffe_dist.profiling import Kind, Profiler
from pycaffe_dist.solvers.engine import Engine
from pycaffe_dist.solvers.update.updater import Updater


class BatchedUpdates:
    """Updates ``parameters``, the targets of ``updater``, once all mean gradients are there.

    It knows no larc_policy.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        engine: Engine,
        updater: Updater[Parameter],
        profiler: Profiler,
    ):
        self._parameters, self._engine, self._updater = parameters, engine, updater
        self._profiler = profiler
        self._launch: UpdateOfMany | None = None
        self._arrays: list[tuple] = []  # of the launch

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
        with use(self._updater.device):
            launch = self._launch_for(indices)
            scale = self._updater.scale(clipping)
            rate *= method.correction(iteration)
            launch.run(scale, rate, method.scalars(iteration))
        if self._profiler.record:
            self._profiler.record(Kind.UPDATE, "all", started, perf_counter())

    def _launch_for(self, indices: Sequence[int]) -> UpdateOfMany:
        """Return the launch of the last iteration, or a new one if any array is another."""
        arrays = [self._updater.method.arrays(index) for index in indices]
        if self._launch is None or not _are_the_same(arrays, self._arrays):
            targets = [self._updater.targets[index] for index in indices]
            settings = [(*self._updater.decays(each), each.lr_mult) for each in targets]
            self._launch = UpdateOfMany(self._updater.method.step, arrays, settings)
            self._arrays = arrays
        return self._launch


def _are_the_same(arrays: list[tuple], others: list[tuple]) -> bool:
    """Tell whether all arrays are the same objects."""
    return len(arrays) == len(others) and all(
        one is other for own, theirs in zip(arrays, others) for one, other in zip(own, theirs)
    )
