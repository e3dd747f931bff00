"""Functions that follow a solver's run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pycaffe_dist.solvers.solver import Solver

Callback = Callable[["Solver"], None]
Metrics = dict[str, Any]  # one record of a run: see solvers/metrics.py


@dataclass(frozen=True)
class Callbacks:
    """Functions by the moment at which a solver calls them; each gets the solver.

    ``before_gradients``, ``after_gradients`` (the mean over ranks, before the update) and
    ``after_iteration`` find all parameters updated.  The others must not look at parameters, unless
    they call `finish_updates` first.  ``before_start`` and ``after_start``: the engine gets the
    parameters; ``before_start`` is called also when loops by hand begin or end.  ``after_update``
    comes before any message of the next iteration, ``end_of_iteration`` after ``after_iteration``,
    ``after_tests`` after a test of all test nets.  On rank 0 alone, ``on_record`` gets the records
    of displays and tests, too; while it has a function, ``at_display`` is called before the update
    of each iteration that is displayed, and may wait for the mean gradients.  When a run is
    stopped, ``after_iteration`` and ``end_of_iteration`` find `stopping` true in its last
    iteration.
    """

    before_start: list[Callback] = field(default_factory=list)
    after_start: list[Callback] = field(default_factory=list)
    before_gradients: list[Callback] = field(default_factory=list)
    after_gradients: list[Callback] = field(default_factory=list)
    at_display: list[Callback] = field(default_factory=list)
    on_record: list[Callable[[Solver, Metrics], None]] = field(default_factory=list)
    after_update: list[Callback] = field(default_factory=list)
    after_iteration: list[Callback] = field(default_factory=list)
    end_of_iteration: list[Callback] = field(default_factory=list)
    after_tests: list[Callback] = field(default_factory=list)
    before_snapshot: list[Callback] = field(default_factory=list)
