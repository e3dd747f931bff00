"""The first iterations of a run, in which the engine finds the fastest exchange plan."""

from __future__ import annotations

import weakref
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.log import logger
from pycaffe_dist.profiling import Kind
from pycaffe_dist.solvers.layer_times import LayerTimes

if TYPE_CHECKING:
    from pycaffe_dist.solvers.engine import TunableEngine
    from pycaffe_dist.solvers.solver import Solver

# The first iteration with a plan allocates what it needs.  Of the others there are as many as take
# so many seconds, but not too few or too many of them.
_WARM_UP = 1
_SECONDS = 0.25
_FEWEST, _MOST = 4, 20


class Stopwatch:
    """Takes the times of ``count`` iterations, but for tests; call it as a `Record`."""

    def __init__(self, count: int):
        self._count = count
        self._began = self._ended = 0.0
        self._seconds: list[float] = []

    def __call__(self, kind: Kind, name: str, started: float, ended: float) -> None:
        if kind is not Kind.EXCHANGE:
            self._began = self._began or started
            self._ended = ended

    def end_iteration(self) -> bool:
        """Take note of the end of an iteration; tell whether there were enough."""
        self._seconds.append(self._ended - self._began)
        self._began = 0.0
        return len(self._seconds) >= _WARM_UP + self._count

    def median(self) -> float:
        """Return the median of the iterations after the first."""
        return median(self._seconds[_WARM_UP:])


class Tuning:
    """Times a solver's layers, has the engine make plans with that, and tries the best ones.

    All ranks do so in the same iterations.
    """

    def __init__(self, solver: Solver, engine: TunableEngine):
        self._engine = engine
        self._solver: Solver = weakref.proxy(solver)  # which owns this object
        self._plans = 0  # how many there are to try, once that is known
        self._count = _FEWEST  # in how many iterations each
        self._seconds: list[float] = []  # of an iteration with each of them
        self._watch: LayerTimes | Stopwatch = LayerTimes()
        solver.profile(self._watch)
        engine.keep_apart(True)

    def end_iteration(self) -> bool:
        """Take note of the end of an iteration; tell whether the tuning is over."""
        if not self._watch.end_iteration():
            return False
        solver = self._solver
        solver.finish_updates()
        if isinstance(self._watch, LayerTimes):
            times = self._watch.times(solver.net, solver.cluster)
            self._plans = self._engine.revise(solver.net.parameters, times)
            seconds = sum(times.forward) + sum(times.backward) + times.update
            self._count = int(np.clip(_SECONDS / seconds, _FEWEST, _MOST)) if seconds else _FEWEST
        else:
            self._seconds.append(float(solver.cluster.max(np.array(self._watch.median()))))
        self.stop_watching()
        tried = len(self._seconds)
        if self._plans < 2 or tried == self._plans:
            self._take_the_fastest()
            return True
        self._engine.use_plan(tried, solver.net.parameters)
        self._watch = Stopwatch(self._count)
        solver.profile(self._watch)
        return False

    def _take_the_fastest(self) -> None:
        engine, seconds = self._engine, self._seconds
        if seconds:
            tried = ", ".join(f"{1e3 * each:.3g}" for each in seconds)
            logger.info("An iteration with each of the best plans took %s ms", tried)
            fastest = seconds.index(min(seconds))
            engine.use_plan(fastest, self._solver.net.parameters, "the fastest of those tried")
        engine.fix_plan()

    def stop(self) -> None:
        """Take the fastest plan of those that were tried, if there is one; no more are tried."""
        self.stop_watching()
        self._solver.finish_updates()
        self._take_the_fastest()

    def stop_watching(self) -> None:
        """Take no more times, and let messages travel when they are ready."""
        self._solver.profile(self._watch, wanted=False)
        self._engine.keep_apart(False)
