"""A run's state after its last update, in memory: what ranks go on from when others are lost.

An update needs the gradients of all ranks, so these are at most one update apart when one is lost.
Ranks that lack it take weights and history from one that has made it: all have done the rest of
that iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist.device import use
from pycaffe_dist.net import Net
from pycaffe_dist.solvers import resuming

if TYPE_CHECKING:
    from pycaffe_dist.solvers.averaging import WeightAverage
    from pycaffe_dist.solvers.method import Method
    from pycaffe_dist.solvers.solver import Solver


@dataclass(frozen=True)
class Checkpoint:
    """A rank's memory of a run, after the update that made its ``iteration``.

    ``own`` is what only this rank knows (see `resuming.record`), ``own_later`` the same after one
    more update if this rank lacks only that.  ``weights`` has the blobs of all layers, ``history``
    the solver's, ``means`` those of ``averaged`` iterations' weights.  The run ``began`` at that
    time (`time.monotonic`).
    """

    iteration: int
    began: float
    ranks: int
    batch: int
    tested: list[int]
    learning_rate: dict[str, Any]
    plan: str
    best: dict[str, Any]
    own: dict[str, Any]
    own_later: dict[str, Any]
    weights: list[np.ndarray]
    history: list[np.ndarray]
    averaged: int
    means: list[np.ndarray]

    def tell(self) -> dict[str, Any]:
        """Return, for JSON, what all ranks must know."""
        return {name: getattr(self, name) for name in ("iteration", "own", "own_later")}

    def restore(self, net: Net, method: Method, average: WeightAverage | None) -> None:
        """Give net, method and average of the same solver what the run had."""
        with use(net.device):
            for mine, kept in zip(_weights(net), self.weights):
                mine[...] = kept
            for mine, kept in zip(method.history, self.history):
                mine[...] = kept
            if average:
                average.restore(self.averaged, self.means)


class CheckpointKeeper:
    """Keeps what an iteration changes before its update, while ranks of a solver may be lost.

    Weights and history change only in updates, which all ranks make or none.
    """

    def __init__(self, solver: Solver):
        self._solver = solver
        self._noted: dict[str, Any] = {}
        self._counters: tuple[int, list[int], dict[str, Any], dict[str, Any]] = (0, [], {}, {})
        solver.callbacks.after_start.append(self._note_first)
        solver.callbacks.after_update.append(self.note)

    def _note_first(self, solver: Solver) -> None:
        if not self._noted:
            self.note(solver)

    def note(self, solver: Solver) -> None:
        """Keep the present state, between two iterations."""
        state = solver.state
        self._noted = resuming.note(state, solver.net, solver.test_nets, solver.cluster)
        best = state.best.state() if state.best else {}
        self._counters = state.iteration, list(state.tested), state.learning_rate.state(), best

    def checkpoint(self) -> Checkpoint | None:
        """Return the state after the last update; None before the first iteration."""
        if not self._noted:
            return None
        solver = self._solver
        average = solver.state.average
        later = resuming.note_later(solver.state, solver.net, solver.test_nets, solver.cluster)
        statistics = resuming.own_statistics(solver.state, solver.net, solver.cluster)
        for mine, noted in zip(statistics, self._noted["statistics"]):
            mine[...] = noted
        iteration, tested, learning_rate, best = self._counters
        return Checkpoint(
            iteration=iteration,
            began=solver.state.began,
            ranks=solver.cluster.size,
            batch=solver.effective_batch,
            tested=tested,
            learning_rate=learning_rate,
            plan=solver.engine.fix_plan().decode(),
            best=best,
            own=resuming.record(self._noted),
            own_later=resuming.record(later),
            weights=_weights(solver.net),
            history=list(solver.method.history),
            averaged=average.count if average else 0,
            means=average.arrays if average else [],
        )


def _weights(net: Net) -> list[np.ndarray]:
    return [blob.data for layer in net.layers for blob in layer.blobs]


def newest(found: Sequence[dict[str, Any] | None]) -> tuple[int, list[dict[str, Any]]]:
    """Return a rank with the newest checkpoint, and what ranks know themselves at its iteration.

    ``found`` has what the ranks tell of their checkpoints (`Checkpoint.tell`), None without one.
    """
    told = [each for each in found if each is not None]
    last = max(each["iteration"] for each in told)
    first = next(each for each in told if each["iteration"] == last)
    # All ranks change the loss scale alike, with an update.
    scale = {"loss_scale": first["own"]["loss_scale"]}
    own = [each["own"] if each["iteration"] == last else each["own_later"] | scale for each in told]
    return found.index(first), own


def filled_up(records: Sequence[dict[str, Any]], ranks: int) -> list[dict[str, Any]]:
    """Return records for all ``ranks`` of a run: the survivors' and, for the lost, the first one.

    All ranks have read the same number of batches; random states are each rank's own.
    """
    first = {**records[0], "train": _without_random(records[0]["train"])}
    first["test"] = [_without_random(states) for states in records[0]["test"]]
    return [*records, *[first] * (ranks - len(records))]


def _without_random(states: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        layer: {name: value for name, value in state.items() if name != "random"}
        for layer, state in states.items()
    }
