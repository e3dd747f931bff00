"""A run's state after its last update, in memory: what ranks go on from when others are lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist.device import use
from pycaffe_dist.net import Net
from pycaffe_dist.solvers import resuming

if TYPE_CHECKING:
    from pycaffe_dist.solvers.method import Method
    from pycaffe_dist.solvers.solver import Solver


@dataclass(frozen=True)
class Checkpoint:
    """A rank's memory of a run, after the update that made its ``iteration``.

    ``own`` is what only this rank knows (see `resuming.record`); ``weights`` has the blobs of all
    layers, ``history`` the solver's.
    """

    iteration: int
    ranks: int
    batch: int
    tested: list[int]
    learning_rate: dict[str, Any]
    plan: str
    own: dict[str, Any]
    weights: list[np.ndarray]
    history: list[np.ndarray]

    def restore(self, net: Net, method: Method) -> None:
        """Give a net and a method of the same solver the weights and the history."""
        with use(net.device):
            for mine, kept in zip(_weights(net), self.weights):
                mine[...] = kept
            for mine, kept in zip(method.history, self.history):
                mine[...] = kept


class CheckpointKeeper:
    """Keeps what an iteration changes before its update, while ranks of a solver may be lost.

    Weights and history change only in updates, which all ranks make or none.
    """

    def __init__(self, solver: Solver):
        self._solver = solver
        self._noted: dict[str, Any] = {}
        self._counters: tuple[int, list[int], dict[str, Any]] = (0, [], {})
        solver.callbacks.after_start.append(self._note_first)
        solver.callbacks.after_update.append(self._note)

    def _note_first(self, solver: Solver) -> None:
        if not self._noted:
            self._note(solver)

    def _note(self, solver: Solver) -> None:
        state = solver.state
        self._noted = resuming.note(state, solver.net, solver.test_nets, solver.cluster)
        self._counters = state.iteration, list(state.tested), state.learning_rate.state()

    def checkpoint(self) -> Checkpoint | None:
        """Return the state after the last update; None before the first iteration."""
        if not self._noted:
            return None
        solver = self._solver
        statistics = resuming.own_statistics(solver.net, solver.cluster)
        for mine, noted in zip(statistics, self._noted["statistics"]):
            mine[...] = noted
        iteration, tested, learning_rate = self._counters
        return Checkpoint(
            iteration=iteration,
            ranks=solver.cluster.size,
            batch=solver.effective_batch,
            tested=tested,
            learning_rate=learning_rate,
            plan=solver.engine.fix_plan().decode(),
            own=resuming.record(self._noted),
            weights=_weights(solver.net),
            history=list(solver.method.history),
        )


def _weights(net: Net) -> list[np.ndarray]:
    return [blob.data for layer in net.layers for blob in layer.blobs]


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
