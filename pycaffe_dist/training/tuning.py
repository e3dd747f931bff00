"""The first iterations of a run, in which the engine finds the fastest exchange plan."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.log import logger
from pycaffe_dist.planning.layer_times import LayerTimes, Times
from pycaffe_dist.profiling import MARKS, Kind, Span
from pycaffe_dist.solvers.engine import Engine

if TYPE_CHECKING:
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.solvers import Solver

# The first iteration with a plan allocates what it needs.  The others take this many seconds in
# all, within the bounds on their number.
_WARM_UP = 1
_SECONDS = 0.25
_FEWEST, _MOST = 4, 20


class Stopwatch:
    """Takes the times of ``count`` iterations without their tests; call it with spans."""

    def __init__(self, count: int):
        self._count = count
        self._began = self._ended = 0.0
        self._seconds: list[float] = []

    def __call__(self, spans: Sequence[Span]) -> None:
        """Take spans."""
        for kind, _, started, ended, _ in spans:
            if kind != Kind.EXCHANGE and kind not in MARKS:
                self._began = self._began or started
                self._ended = ended

    def end_iteration(self) -> bool:
        """Note the end of an iteration; tell whether there were enough."""
        self._seconds.append(self._ended - self._began)
        self._began = 0.0
        return len(self._seconds) >= _WARM_UP + self._count

    def median(self) -> float:
        """Return the median of the iterations after the first."""
        return median(self._seconds[_WARM_UP:])


class TunableEngine(Engine):
    """An engine with a plan that `Tuning` chooses during the first iterations."""

    @property
    @abc.abstractmethod
    def can_revise(self) -> bool:
        """Whether the plan would gain by the times of the layers."""

    @abc.abstractmethod
    def keep_apart(self, apart: bool) -> None:
        """Send messages only while nobody computes, so that layers can be timed, or when ready."""

    @abc.abstractmethod
    def revise(self, parameters: Sequence[Parameter], times: Times) -> int:
        """Make plans from the layers' times, between two iterations, and use the best prediction.

        Returns the number of plans that are worth a trial.
        """

    @abc.abstractmethod
    def use_plan(self, number: int, parameters: Sequence[Parameter], words: str = "") -> None:
        """Change to the plan of that number, 0 for the best, between two iterations.

        ``words`` are for the log: why.
        """


class Tuning:
    """Times a solver's layers, has the engine make plans with these times, and tries the best ones.

    It follows the solver by callbacks.  All ranks do the same in the same iterations.
    """

    def __init__(self) -> None:
        self._engine: TunableEngine | None = None  # while it is tuned
        self._watch: LayerTimes | Stopwatch = LayerTimes()
        self._plans = 0  # the number of plans to try, once it is known
        self._count = _FEWEST  # the number of iterations with each
        self._seconds: list[float] = []  # of an iteration with each plan tried

    def follow(self, solver: Solver) -> None:
        """Tune the plan of a solver's engine whenever the solver starts."""
        calls = solver.callbacks
        calls.before_start.append(self.cancel)
        calls.after_start.append(self.begin)
        calls.end_of_iteration.append(self.end_iteration)
        calls.before_snapshot.append(self.stop)

    def begin(self, solver: Solver) -> None:
        """Time the layers from now on, if the engine's plan would gain by that."""
        engine = solver.engine
        # Loops by hand have no iterations to time.
        if solver.by_hand or not isinstance(engine, TunableEngine) or not engine.can_revise:
            return
        self._engine = engine
        self._plans, self._count, self._seconds = 0, _FEWEST, []
        self._watch = LayerTimes()
        solver.profile(self._watch)
        engine.keep_apart(True)

    def end_iteration(self, solver: Solver) -> None:
        """Note the end of an iteration; go on to the next plan after enough of them."""
        engine = self._engine
        if engine is None:
            return
        solver.profiler.hand_over()
        if not self._watch.end_iteration():
            return
        solver.finish_updates()
        if isinstance(self._watch, LayerTimes):
            times = self._watch.times(solver.net, solver.cluster)
            self._plans = engine.revise(solver.net.parameters, times)
            seconds = sum(times.forward) + sum(times.backward) + times.update
            self._count = int(np.clip(_SECONDS / seconds, _FEWEST, _MOST)) if seconds else _FEWEST
        else:
            self._seconds.append(float(solver.cluster.max(np.array(self._watch.median()))))
        tried = len(self._seconds)
        if self._plans < 2 or tried == self._plans:
            self.stop(solver)
            return
        self._stop_watching(solver, engine)
        engine.use_plan(tried, solver.net.parameters)
        self._watch = Stopwatch(self._count)
        solver.profile(self._watch)

    def stop(self, solver: Solver) -> None:
        """Take the fastest of the plans that were tried, if there is one; try no more."""
        engine, seconds = self._engine, self._seconds
        if engine is None:
            return
        self.cancel(solver)
        solver.finish_updates()
        if seconds:
            tried = ", ".join(f"{1e3 * each:.3g}" for each in seconds)
            logger.info("An iteration with each of the best plans took %s ms", tried)
            fastest = seconds.index(min(seconds))
            engine.use_plan(fastest, solver.net.parameters, "the fastest of those tried")
        engine.fix_plan()

    def cancel(self, solver: Solver) -> None:
        """Stop the tuning, with the engine's present plan."""
        if self._engine is not None:
            self._stop_watching(solver, self._engine)
            self._engine = None

    def _stop_watching(self, solver: Solver, engine: TunableEngine) -> None:
        """Take no more times, and let messages travel when they are ready."""
        solver.profile(self._watch, wanted=False)
        engine.keep_apart(False)
