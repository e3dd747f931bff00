"""A solver's snapshot files: their names, writing them, and continuing from them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from pycaffe_dist import atomic
from pycaffe_dist.errors import PcaffeError, SnapshotError, UsageError
from pycaffe_dist.launch.processes import launch_name
from pycaffe_dist.log import logger
from pycaffe_dist.net import Net
from pycaffe_dist.net import weights as net_weights
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.schema.reading import require_file
from pycaffe_dist.snapshot import catalog
from pycaffe_dist.snapshot import prefix as prefixes
from pycaffe_dist.snapshot.background import Background, Copies
from pycaffe_dist.snapshot.caffemodel import LayerWeights, fill_weights, save_weights
from pycaffe_dist.snapshot.catalog import Snapshot
from pycaffe_dist.snapshot.companion import Companion
from pycaffe_dist.snapshot.solverstate import SolverStateData, fill_state, load_state
from pycaffe_dist.solvers.method import Method
from pycaffe_dist.solvers.state import TrainState

LATEST, LATEST_OF_LAUNCH = "latest", "latest@launch"


def check_prefix(param: caffe_pb2.SolverParameter) -> None:
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


@contextmanager
def holding_prefix(param: caffe_pb2.SolverParameter) -> Iterator[str]:
    """Keep other trainings from the solver's snapshot prefix, if it writes snapshots by itself.

    Gives an empty string.  Raises UsageError when another process has the prefix.
    """
    writes = param.snapshot or param.snapshot_after_train or param.best_output
    if not param.snapshot_prefix or not writes:
        yield ""
        return
    hold = prefixes.take(param.snapshot_prefix, launch_name(), prefixes.PATIENCE_SECONDS)
    if hold.owner is not None:
        raise UsageError(f"{_in_use(hold)}; end that one, or choose another snapshot_prefix")
    try:
        yield ""
    finally:
        del hold  # also where an error's traceback keeps this frame


def _in_use(hold: prefixes.Hold) -> str:
    owner = hold.owner.words if hold.owner else ""
    return f"the snapshot prefix '{hold.prefix}' is in use by {owner}"


class SnapshotWriter:
    """Writes a solver's snapshots, on rank 0, while training goes on.

    After each, only the newest ``keep`` snapshots of the prefix stay; 0 keeps all.  ``last_good``
    is the solver state that a run would best resume from, for messages.
    """

    def __init__(self, param: caffe_pb2.SolverParameter, keep: int = 0):
        self._param = param
        self._keep = keep
        self._copies = Copies()
        self._background = Background()
        self.last_good = ""
        self._hold: prefixes.Hold | None = None

    def start(
        self,
        net: Net,
        state: TrainState,
        history: Sequence[np.ndarray],
        about: partial[Companion],
        periodic: bool,
    ) -> Snapshot:
        """Copy weights and ``history``, and begin to write them; return where.

        ``about`` knows of the run what ``state`` does not: seed, ranks, batch, by_rank and plan.
        An earlier snapshot is waited for first.  When a ``periodic`` one fails, one line says so.
        """
        self.wait()
        param, copied = self._param, self._copies.copy
        hdf5 = param.snapshot_format == caffe_pb2.SolverParameter.HDF5
        files = catalog.place(param.snapshot_prefix, state.iteration, hdf5)
        self._copies.restart()
        average = state.average if state.average and state.average.count else None
        means = average.of_blobs if average else {}
        layers = net_weights.collect(net, param.snapshot_diff, copied, means)
        weights = [parameter.blob.read_data() for parameter in net.parameters] if average else []
        data = SolverStateData(
            iteration=state.iteration,
            learned_net=files.weights,
            current_step=state.learning_rate.current_step,
            history=[copied(array) for array in history],
            averaged=average.count if average else 0,
            weights=[copied(array) for array in weights],
        )
        about = partial(
            about,
            iteration=state.iteration,
            tested=list(state.before_test.tested if state.before_test else state.tested),
            learning_rate=state.learning_rate.state(),
            best=state.best.state() if state.best else {},
            launch=launch_name(),
        )
        job = partial(self._write, files, net.name, layers, data, about)
        self._background.start(partial(self._reporting, job) if periodic else job)
        return files

    def write_best(self, net: Net, state: TrainState) -> None:
        """Write the weights that the last test had; a failure is logged."""
        hdf5 = self._param.snapshot_format == caffe_pb2.SolverParameter.HDF5
        path = f"{self._param.snapshot_prefix}_best.caffemodel{'.h5' if hdf5 else ''}"
        means = state.average.of_blobs if state.average else {}
        logger.info("Writing the best weights so far to %s", path)
        try:
            save_weights(path, net.name, net_weights.collect(net, False, instead=means))
        except PcaffeError as error:
            logger.error("The best weights are not kept: %s; training goes on", error)

    def wait(self) -> PcaffeError | None:
        """Wait until the last snapshot is on the disk; return its error if it is not."""
        return self._background.wait()

    def close(self) -> None:
        """Wait until the last snapshot is on the disk; let other processes have the prefix."""
        self.wait()
        self._hold = None

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
        _require_finite(files, layers)
        prefix = self._param.snapshot_prefix
        if self._hold is None:
            self._hold = prefixes.take(prefix, launch_name())
            if self._hold.owner is not None:
                logger.warning("%s: its snapshots and ours may mix", _in_use(self._hold))
        with self._hold.turn:
            if self._hold.newest is None:
                self._hold.newest = catalog.newest_time(prefix)
            self._hold.newest = catalog.time_after(self._hold.newest)
            about = partial(about, written=self._hold.newest)
            self._write_files(files, net_name, layers, state, about)
            self.last_good = files.state
            if self._keep:
                catalog.prune(prefix, self._keep, files)

    def _write_files(
        self,
        files: Snapshot,
        net_name: str,
        layers: Sequence[LayerWeights],
        state: SolverStateData,
        about: partial[Companion],
    ) -> None:
        """Write all three files under other names, then give them theirs, the state's last."""
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


def restore(path: str, net: Net, method: Method, state: TrainState) -> Companion | None:
    """Take weights, history and counters from the state in ``path`` and the weights it names.

    Returns what Caffe's files lack, if there is any.  Everything is checked before anything is
    changed; raises SnapshotError or WeightsError.
    """
    saved = load_state(path)
    weights, about = catalog.weights_of(path, saved.learned_net)
    history = method.history
    if len(saved.history) != len(history):
        raise SnapshotError(
            f"{path}: the state has {len(saved.history)} history blobs, this net and solver type "
            f"'{method.type}' need {len(history)}"
        )
    for number, (theirs, ours) in enumerate(zip(saved.history, history)):
        if theirs.size != ours.size:
            raise SnapshotError(
                f"{path}: history blob {number} has shape {theirs.shape}, expected {ours.shape}"
            )
    if saved.weights and [a.size for a in saved.weights] != [p.blob.count for p in net.parameters]:
        raise SnapshotError(f"{path}: its weights do not fit this net")
    missing = net.load_weights(weights)
    if missing:
        logger.warning(
            "%s has no weights of layer(s) %s: they start anew", weights, ", ".join(missing)
        )
    for theirs, ours in zip(saved.history, history):
        ours[...] = theirs.reshape(ours.shape)
    if state.average:
        means = [parameter.blob.read_data() for parameter in net.parameters]
        state.average.restore(saved.averaged, means)
    for theirs, parameter in zip(saved.weights, net.parameters):
        parameter.blob.data[...] = theirs.reshape(parameter.shape)
    state.iteration = saved.iteration
    state.learning_rate.current_step = saved.current_step
    logger.info("SGDSolver: restoring history")
    return about


def resolve(param: caffe_pb2.SolverParameter, wanted: str) -> str:
    """Return the path of the solver state to resume from: for "latest", the newest good one.

    "latest@launch" takes only snapshots that the attempts of this `pcaffe launch` have written.
    Without any, it is empty, or FILE for "latest,FILE".  Raises SnapshotError.
    """
    first, _, otherwise = wanted.partition(",")
    if first not in (LATEST, LATEST_OF_LAUNCH):
        if wanted:
            require_file(wanted, lambda message: SnapshotError(f"{wanted}: {message}"))
        return wanted
    launch = launch_name() if first == LATEST_OF_LAUNCH else ""
    if first == LATEST_OF_LAUNCH and not launch:
        raise UsageError(
            f"--snapshot={LATEST_OF_LAUNCH} is for runs that pcaffe launch has started"
        )
    if not param.snapshot_prefix:
        raise UsageError("--snapshot=latest needs a snapshot_prefix in the solver")
    found = catalog.latest(param.snapshot_prefix, launch)
    if found is None:
        logger.info("There is no snapshot of prefix '%s' yet", param.snapshot_prefix)
        return otherwise
    return found.state
