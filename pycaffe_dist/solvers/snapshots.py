"""A solver's snapshots: which files, what goes into them, and how one continues from them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist.errors import PcaffeError, SnapshotError, UsageError
from pycaffe_dist.log import logger
from pycaffe_dist.net import weights as net_weights
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.snapshot import atomic, catalog, companion
from pycaffe_dist.snapshot.background import Background, Copies
from pycaffe_dist.snapshot.caffemodel import LayerWeights, fill_weights
from pycaffe_dist.snapshot.catalog import Snapshot
from pycaffe_dist.snapshot.companion import Companion
from pycaffe_dist.snapshot.solverstate import SolverStateData, fill_state, load_state

if TYPE_CHECKING:
    from pycaffe_dist.solvers.solver import Solver

LATEST = "latest"


def check_prefix(param: Any) -> None:
    """Raise an error now if the first snapshot would fail for want of a writable folder."""
    if not param.snapshot_prefix:
        raise UsageError("the solver has snapshot but no snapshot_prefix")
    folder = Path(param.snapshot_prefix).parent
    if not folder.is_dir():
        raise SnapshotError(
            f"cannot write to snapshot prefix '{param.snapshot_prefix}': "
            f"folder '{folder}' does not exist"
        )
    if not os.access(folder, os.W_OK):
        raise SnapshotError(
            f"cannot write to snapshot prefix '{param.snapshot_prefix}': "
            f"folder '{folder}' is not writable"
        )


class SnapshotWriter:
    """Writes a solver's snapshots, on rank 0, while training goes on.

    After each, only the newest ``keep`` snapshots of the prefix stay; 0 keeps all.  ``last_good``
    is the solver state that a run would best resume from, for messages.
    """

    def __init__(self, param: Any, keep: int = 0):
        self._param = param
        self._keep = keep
        self._copies = Copies()
        self._background = Background()
        self.last_good = ""
        self._is_first = True

    def start(
        self,
        solver: Solver,
        by_rank: list[dict[str, Any]],
        history: Sequence[np.ndarray],
        periodic: bool,
    ) -> Snapshot:
        """Copy weights and ``history``, and begin to write them; return where.

        An earlier snapshot is waited for first.  When a ``periodic`` one fails, one line says so.
        """
        self.wait()
        param, copied = self._param, self._copies.copy
        hdf5 = param.snapshot_format == caffe_pb2.SolverParameter.HDF5
        files = catalog.place(param.snapshot_prefix, solver.iteration, hdf5)
        self._copies.restart()
        layers = net_weights.collect(solver.net, param.snapshot_diff, copied)
        state = SolverStateData(
            iteration=solver.iteration,
            learned_net=files.weights,
            current_step=solver.learning_rate.current_step,
            history=[copied(array) for array in history],
        )
        about = partial(
            Companion,
            iteration=solver.iteration,
            written=time.time(),
            seed=solver.seed,
            ranks=solver.cluster.size,
            batch=solver.effective_batch,
            tested=list(solver.before_test.tested if solver.before_test else solver.tested),
            learning_rate=solver.learning_rate.state(),
            by_rank=by_rank,
            plan=solver.engine.settle().decode(),
        )
        job = partial(self._write, files, solver.net.name, layers, state, about)
        self._background.start(partial(self._reporting, job) if periodic else job)
        return files

    def wait(self) -> PcaffeError | None:
        """Wait until the last snapshot is on the disk; return its error if it is not."""
        return self._background.wait()

    def _reporting(self, job: partial[None]) -> None:
        try:
            job()
        except PcaffeError as error:
            kept = self.last_good or "none"
            logger.error("Snapshot failed: %s; training goes on (last good one: %s)", error, kept)
            raise

    def _write(
        self,
        files: Snapshot,
        net_name: str,
        layers: Sequence[LayerWeights],
        state: SolverStateData,
        about: partial[Companion],
    ) -> None:
        """Write all three files under other names, then give them theirs, the state's last."""
        _require_finite(files, layers)
        if self._is_first:
            self._is_first = False
            prefix = Path(self._param.snapshot_prefix)
            atomic.remove_leftovers(prefix.parent, f"{prefix.name}_iter_")
        kind = "HDF5" if files.state.endswith(".h5") else "binary proto"
        # The blocks end in reverse: a state is never there without its weights and companion.
        with (
            atomic.replacing(files.state) as new_state,
            atomic.replacing(files.companion) as new_companion,
            atomic.replacing(files.weights) as new_weights,
        ):
            logger.info("Snapshotting to %s file %s", kind, files.weights)
            with atomic.explaining(files.weights):
                fill_weights(new_weights, files.weights, net_name, layers)
                weights_sum = atomic.finished(new_weights)
            logger.info("Snapshotting solver state to %s file %s", kind, files.state)
            with atomic.explaining(files.state):
                fill_state(new_state, files.state, state)
                state_sum = atomic.finished(new_state)
            with atomic.explaining(files.companion):
                contents = about(weights=weights_sum, state=state_sum).encode()
                atomic.fill(new_companion, [contents])
        self.last_good = files.state
        if self._keep:
            catalog.prune(self._param.snapshot_prefix, self._keep)


def _require_finite(files: Snapshot, layers: Sequence[LayerWeights]) -> None:
    """Raise SnapshotError for weights that are of no use, so that good ones are not pruned."""
    for layer in layers:
        for blob in layer.blobs:
            # float64 cannot overflow here, and any NaN or infinity shows in the sum.
            if blob is not None and not np.isfinite(blob.sum(dtype=np.float64)):
                raise SnapshotError(
                    f"{files.weights}: not written, for weights of layer '{layer.name}' are NaN "
                    "or infinite"
                )


def restore(solver: Solver, path: str) -> Companion | None:
    """Take weights, history and counters from the state in ``path`` and the weights it names.

    Returns what Caffe's files lack, if there is any.  Everything is checked before anything is
    changed; raises SnapshotError or WeightsError.
    """
    state = load_state(path)
    history = solver.method.history
    if len(state.history) != len(history):
        raise SnapshotError(
            f"{path}: the state has {len(state.history)} history blobs, this net and solver type "
            f"'{solver.param.type}' need {len(history)}"
        )
    for number, (theirs, ours) in enumerate(zip(state.history, history)):
        if theirs.size != ours.size:
            raise SnapshotError(
                f"{path}: history blob {number} has shape {theirs.shape}, expected {ours.shape}"
            )
    about = None
    if state.learned_net:
        weights = catalog.find_weights(path, state.learned_net)
        about = companion.of(path, weights)
        solver.net.load_weights(weights)
    for theirs, ours in zip(state.history, history):
        ours[...] = theirs.reshape(ours.shape)
    solver.iteration = state.iteration
    solver.learning_rate.current_step = state.current_step
    logger.info("SGDSolver: restoring history")
    return about


def resolve(param: Any, wanted: str) -> str:
    """Return the path of the solver state to resume from: for "latest", the newest good one.

    "latest@SECONDS" leaves those alone that were written before that time since 1970.  Without any,
    it is empty, or FILE for "latest,FILE".  Raises SnapshotError.
    """
    first, _, otherwise = wanted.partition(",")
    name, _, since = first.partition("@")
    if name != LATEST:
        return wanted
    if not param.snapshot_prefix:
        raise UsageError("--snapshot=latest needs a snapshot_prefix in the solver")
    found = catalog.latest(param.snapshot_prefix, _seconds(since))
    if found is None:
        logger.info("There is no snapshot of prefix '%s' yet", param.snapshot_prefix)
        return otherwise
    return found.state


def _seconds(since: str) -> float:
    try:
        return float(since or 0)
    except ValueError:
        raise UsageError(
            f"--snapshot=latest@SECONDS takes seconds since 1970, found '{since}'"
        ) from None
