"""A run's state beside weights and history, on its way into a snapshot's companion and back."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.errors import SnapshotError
from pycaffe_dist.log import logger
from pycaffe_dist.net import Net
from pycaffe_dist.snapshot.companion import RunRecord
from pycaffe_dist.solvers.state import LayerStates, TrainState


def layer_states(net: Net) -> LayerStates:
    """Return the states of the layers that have one."""
    with device.use(net.device):
        found = {node.name: node.layer.state() for node in net.nodes}
    return {name: state for name, state in found.items() if state}


def own_statistics(state: TrainState, net: Net, cluster: Cluster) -> list[np.ndarray]:
    """Return the layers' running statistics and their means, as far as ranks have their own."""
    if cluster.size == 1:
        return []
    means = state.average.statistics() if state.average else []
    return [blob.data for layer in net.layers for blob in layer.statistics_blobs()] + means


def _encoded(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def restore_statistics(
    state: TrainState, net: Net, cluster: Cluster, statistics: Sequence[str]
) -> None:
    """Take over this rank's own statistics from its record, unless they are another net's."""
    own = own_statistics(state, net, cluster)
    saved = [base64.b64decode(encoded) for encoded in statistics]
    # Statistics of averages may follow, if the saved run kept some and this one does not.
    if [array.nbytes for array in own] == [len(data) for data in saved][: len(own)]:
        for mine, data in zip(own, saved):
            mine[...] = np.frombuffer(data, mine.dtype).reshape(mine.shape)


def note(state: TrainState, net: Net, test_nets: Sequence[Net], cluster: Cluster) -> dict[str, Any]:
    """Return this rank's own state: its losses, its nets' layers' states, its statistics.

    A test that is under way counts as not begun: the resumed run repeats it with the same batches.
    """
    return {
        "losses": list(state.losses.recent),
        "loss_scale": state.loss_scale.state() if state.loss_scale else [],
        "statistics": [array.copy() for array in own_statistics(state, net, cluster)],
        "train": layer_states(net),
        "test": state.before_test.states
        if state.before_test
        else [layer_states(test_net) for test_net in test_nets],
    }


def note_later(
    state: TrainState, net: Net, test_nets: Sequence[Net], cluster: Cluster
) -> dict[str, Any]:
    """Return what `note` will after the update that this rank has passed its gradients on for."""
    noted, average = note(state, net, test_nets, cluster), state.average
    if average and cluster.size > 1 and average.is_due(state.iteration + 1):
        own = noted["statistics"]
        own[len(own) - len(average.statistics()) :] = average.next_statistics()
    return noted


def record(noted: dict[str, Any]) -> dict[str, Any]:
    """Return what `note` has returned as plain values, for a companion."""
    return {**noted, "statistics": [_encoded(array) for array in noted["statistics"]]}


def go_on(
    about: RunRecord, state: TrainState, net: Net, test_nets: Sequence[Net], cluster: Cluster
) -> None:
    """Take over what Caffe's files lack, as far as this run is like the one that wrote it.

    Raises SnapshotError for what no run like this one can have written.
    """
    with _explaining("it"):
        _restore(net, [record["train"] for record in about.by_rank])
        tests = zip(*(record["test"] for record in about.by_rank))
        for test_net, saved in zip(test_nets, tests):
            _restore(test_net, saved)
        _restore_state(about, state, cluster)


@contextmanager
def _explaining(what: str) -> Iterator[None]:
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise SnapshotError(
            f"the .json file beside the solver state: {what} does not fit this net or is damaged "
            f"({type(error).__name__}: {error}); without that file, training resumes as Caffe does"
        ) from error


def _restore_state(about: RunRecord, state: TrainState, cluster: Cluster) -> None:
    state.learning_rate.set_state(about.learning_rate)
    if state.best and about.best:
        state.best.set_state(about.best)
    state.losses.recent.clear()
    if about.ranks == cluster.size:
        mine = about.by_rank[cluster.rank]
        state.losses.recent.extend(mine["losses"])
        if state.loss_scale and mine.get("loss_scale"):
            state.loss_scale.set_state(mine["loss_scale"])
        state.resumed_statistics = mine["statistics"]
        state.tested[: len(about.tested)] = about.tested[: len(state.tested)]
    else:
        losses = [record["losses"] for record in about.by_rank]
        state.losses.recent.extend(np.mean(losses, axis=0).tolist())
        state.tested = [0] * len(state.tested)
    state.losses.go_on = True


def _restore(net: Net, saved: Sequence[LayerStates]) -> None:
    """Let the layers go on from their states on all ranks; layers without a state start afresh."""
    for node in net.nodes:
        of_layer = [states[node.name] for states in saved if node.name in states]
        if len(of_layer) == len(saved):
            with device.use(net.device), _explaining(f"what it says of layer '{node.name}'"):
                node.layer.restore(of_layer)


def log_changes(about: RunRecord, ranks: int, batch: int) -> None:
    """Log what has changed since the snapshot was written."""
    if about.ranks != ranks:
        logger.warning(
            "Resuming on %d rank(s) a run of %d: data go on after the records that were read; "
            "what is random in the net is not what the run would have drawn",
            ranks,
            about.ranks,
        )
    if about.batch != batch:
        log_batch(about, batch)
    if about.ranks == ranks and about.batch == batch:
        logger.info("Resuming exactly where iteration %d ended", about.iteration)


def log_batch(about: RunRecord, batch: int) -> None:
    """Log that an iteration has another number of samples than before."""
    logger.warning(
        "The effective batch size is %d now and was %d; mind the learning rate", batch, about.batch
    )
