"""What a run is beside weights and history, on its way into a snapshot's companion and back."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.errors import SnapshotError
from pycaffe_dist.log import logger
from pycaffe_dist.net import Net
from pycaffe_dist.snapshot.companion import Companion

if TYPE_CHECKING:
    from pycaffe_dist.solvers.solver import Solver

States = dict[str, dict[str, Any]]  # of layers, by name


class BeforeTest(NamedTuple):
    """The batches of each test net, and its layers' states, when a test began."""

    tested: list[int]
    states: list[States]


def states(net: Net) -> States:
    """Return the states of the layers that have one."""
    with device.use(net.device):
        found = {node.name: node.layer.state() for node in net.nodes}
    return {name: state for name, state in found.items() if state}


def own_statistics(solver: Solver) -> list[np.ndarray]:
    """Return the layers' running statistics, as far as they differ from rank to rank."""
    if solver.cluster.size == 1:
        return []
    return [blob.data for layer in solver.net.layers for blob in layer.statistics_blobs()]


def _encoded(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def restore_statistics(solver: Solver, statistics: Sequence[str]) -> None:
    """Take over this rank's own statistics from its record; those of another net are left out."""
    own = own_statistics(solver)
    saved = [base64.b64decode(encoded) for encoded in statistics]
    if [array.nbytes for array in own] == [len(data) for data in saved]:
        for mine, data in zip(own, saved):
            mine[...] = np.frombuffer(data, mine.dtype).reshape(mine.shape)


def record(solver: Solver) -> dict[str, Any]:
    """Return what only this rank knows: its losses, the states of its nets' layers, its statistics.

    A test that is under way counts as not begun: the resumed run repeats it with the same batches.
    """
    return {
        "losses": list(solver.losses.recent),
        "loss_scale": solver.loss_scale.state() if solver.loss_scale else [],
        "statistics": [_encoded(array) for array in own_statistics(solver)],
        "train": states(solver.net),
        "test": solver.before_test.states
        if solver.before_test
        else [states(net) for net in solver.test_nets],
    }


def go_on(solver: Solver, about: Companion) -> None:
    """Take over what Caffe's files lack, as far as this run is like the one that wrote it.

    Raises SnapshotError for what no run like this one can have written.
    """
    _log_changes(solver, about)
    with _explaining("it"):
        _take_over(solver, about)


@contextmanager
def _explaining(what: str) -> Iterator[None]:
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise SnapshotError(
            f"the .json file beside the solver state: {what} does not fit this net or is damaged "
            f"({type(error).__name__}: {error}); without that file, training resumes as Caffe does"
        ) from error


def _take_over(solver: Solver, about: Companion) -> None:
    solver.learning_rate.set_state(about.learning_rate)
    _restore(solver.net, [record["train"] for record in about.by_rank])
    tests = zip(*(record["test"] for record in about.by_rank))
    for net, saved in zip(solver.test_nets, tests):
        _restore(net, saved)
    solver.losses.recent.clear()
    if about.ranks == solver.cluster.size:
        mine = about.by_rank[solver.cluster.rank]
        solver.losses.recent.extend(mine["losses"])
        if solver.loss_scale and mine.get("loss_scale"):
            solver.loss_scale.set_state(mine["loss_scale"])
        solver.resumed_statistics = mine["statistics"]
        solver.engine.resume_plan(about.plan.encode())
        solver.tested[: len(about.tested)] = about.tested[: len(solver.tested)]
    else:
        losses = [record["losses"] for record in about.by_rank]
        solver.losses.recent.extend(np.mean(losses, axis=0).tolist())
        solver.tested = [0] * len(solver.tested)


def _restore(net: Net, saved: Sequence[States]) -> None:
    """Let the layers go on from their states on all ranks; those without any start afresh."""
    for node in net.nodes:
        of_layer = [states[node.name] for states in saved if node.name in states]
        if len(of_layer) == len(saved):
            with device.use(net.device), _explaining(f"what it says of layer '{node.name}'"):
                node.layer.restore(of_layer)


def _log_changes(solver: Solver, about: Companion) -> None:
    """Say, on rank 0, what is not as it was when a snapshot was written."""
    if solver.cluster.rank:
        return
    ranks, batch = solver.cluster.size, solver.effective_batch
    if about.ranks != ranks:
        logger.warning(
            "Resuming on %d rank(s) a run of %d: data go on after the records that were read; "
            "what is random in the net is not what the run would have drawn",
            ranks,
            about.ranks,
        )
    if about.batch != batch:
        logger.warning(
            "The effective batch size is %d now and was %d; mind the learning rate",
            batch,
            about.batch,
        )
    if about.ranks == ranks and about.batch == batch:
        logger.info("Resuming exactly where iteration %d ended", about.iteration)
