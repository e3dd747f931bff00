"""A solver's updates: which are its own, when each is made, and in how many pieces."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from pycaffe_dist.log import logger
from pycaffe_dist.profiling import Kind
from pycaffe_dist.solvers import gradients
from pycaffe_dist.solvers.late_updates import LateUpdates
from pycaffe_dist.solvers.row_updates import RowUpdates
from pycaffe_dist.solvers.updating import Updater

if TYPE_CHECKING:
    from pycaffe_dist.solvers.solver import Solver


class Updates:
    """Makes a solver's updates, each once the parameter's mean gradient is there.

    ``keep_diffs`` says whether the train net's diffs must hold the updates afterwards.
    """

    def __init__(self, solver: Solver, keep_diffs: bool):
        # The solver owns this object: a reference back would leave both to the cycle collector.
        self._solver: Solver = weakref.proxy(solver)
        self._keep_diffs = keep_diffs
        self.updater = Updater(solver.param, solver.net.parameters, solver.device)
        self._late: LateUpdates | None = None
        self._of_rows: dict[int, RowUpdates] = {}

    def start(self) -> None:
        """Prepare for the engine's new plan."""
        self._of_rows.clear()
        self._late = None
        if not self._solver.engine.spans_forward:
            return
        why = gradients.why_together(self._solver.param)
        if why:
            logger.info("Updates do not wait for the next forward: %s needs them all", why)
            return
        self._late = LateUpdates(self._solver.net.parameters, self._solver.engine)

    @property
    def some_are_missing(self) -> bool:
        """Whether the next forward, or `finish`, has updates to make."""
        return bool(self._late)

    @property
    def before_layer(self) -> Callable[[int], None] | None:
        """What forward has to call before each layer, with its index."""
        return self._late.before_layer if self._late else None

    def make(self, rate: float, clipping: float) -> None:
        """Make the updates of the current iteration, or leave them to the next forward."""
        iteration = self._solver.iteration
        update = partial(self._update, rate=rate, iteration=iteration, clipping=clipping)
        if self._late is not None and self._solver.engine.spans_forward:
            self._late.begin(update)
            return
        # The last layers' gradients are the first to arrive.
        indices = reversed(range(len(self._solver.net.parameters)))
        # Who listens is told of each update.
        if self.updater.gains_by_many and not self._solver.listeners.tell:
            mine = [index for index in indices if self._has_come(index)]
            self.updater.update_many(mine, rate, iteration, clipping)
            return
        for index in indices:
            update(index)

    def _has_come(self, index: int) -> bool:
        """Wait for a mean gradient; tell whether the parameter is to be updated here."""
        engine, parameter = self._solver.engine, self._solver.net.parameters[index]
        engine.wait(parameter)
        return not engine.updates(parameter)

    def finish(self) -> None:
        """Make what was left to the next forward; the weights may then be used."""
        if self._late:
            self._late.finish()

    def _update(self, index: int, rate: float, iteration: int, clipping: float) -> None:
        """Update a parameter once its mean gradient is there, unless an exchange has done it."""
        engine, parameter = self._solver.engine, self._solver.net.parameters[index]
        factors = None
        if parameter.as_factors and self._may_update_rows():
            factors = engine.wait_for_factors(parameter)
        else:
            engine.wait(parameter)
        if engine.updates(parameter):
            return
        started = updating = perf_counter()
        if factors is None:
            self.updater.update(index, rate, iteration, clipping)
        else:
            if index not in self._of_rows:
                self._of_rows[index] = RowUpdates(self.updater, index)
            updating += self._of_rows[index].update(factors, rate, iteration)
        tell = self._solver.listeners.tell
        if tell:
            if factors is not None:  # they took turns, and are told as one after the other
                tell(Kind.REBUILD, parameter.key, started, updating)
            tell(Kind.UPDATE, parameter.key, updating, perf_counter())

    def _may_update_rows(self) -> bool:
        """Tell whether nobody but the update needs the gradients of this iteration."""
        solver = self._solver
        shown = self._keep_diffs or solver.net.debug_info or solver.param.snapshot_diff
        return not (shown or solver.param.larc_policy or solver.device.is_gpu)
