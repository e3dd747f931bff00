"""The snapshots of a run, written and restored by all ranks together."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.net import Net, Parameter
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.snapshot import companion
from pycaffe_dist.solvers import resuming, sharing, snapshots
from pycaffe_dist.solvers.checkpoint import Checkpoint, filled_up, newest
from pycaffe_dist.solvers.engine import Engine
from pycaffe_dist.solvers.state import TrainState
from pycaffe_dist.solvers.update.updater import Updater

# What a checkpoint says of all ranks.
_SHARED = ("iteration", "ranks", "batch", "tested", "learning_rate", "plan", "best")


class RunSnapshots:
    """Writes and restores a run: its nets, ``state`` and history, on all ranks.

    Rank 0 has the files; the newest ``keep`` of them stay (0: all).  ``seed`` is the run's.
    Methods get the present ``engine``, and as ``batch`` the samples of an iteration on all ranks.
    """

    def __init__(
        self,
        param: caffe_pb2.SolverParameter,
        cluster: Cluster,
        nets: Sequence[Net],
        state: TrainState,
        updater: Updater[Parameter],
        keep: int,
        seed: int,
    ):
        self._param, self._cluster, self._state, self._updater = param, cluster, state, updater
        self._net, *self._test_nets = nets
        self._seed = seed
        self._writer = snapshots.SnapshotWriter(param, keep)
        self._written_at = -1  # the iteration of the last snapshot

    def is_due(self) -> bool:
        """Tell whether the solver's interval asks for a snapshot of this iteration."""
        interval = self._param.snapshot
        return bool(interval) and self._state.iteration % interval == 0

    def is_wanted(self) -> bool:
        """Tell whether a snapshot of this iteration is due, or was asked for."""
        return self.is_due() or self._written_at == self._state.iteration

    def has_current(self) -> bool:
        """Tell whether there is a snapshot of this iteration; waits until it is written."""
        failed = self._cluster.rank == 0 and self._writer.wait() is not None
        return self.is_wanted() and not self._cluster.max(np.array(int(failed)))

    def write(self, engine: Engine, batch: int, wait: bool) -> str:
        """Write weights and state at this iteration; return the weights' file name on rank 0.

        Rank 0 writes, in a thread.  Raises SnapshotError when it cannot, unless ``wait`` is False.
        """
        self._written_at = self._state.iteration
        cluster = self._cluster
        plan = engine.fix_plan()  # a resumed run goes on with the same plan
        engine.synchronize()
        noted = resuming.note(self._state, self._net, self._test_nets, cluster)
        record = resuming.record(noted)
        by_rank = cluster.gather_bytes(json.dumps(record).encode())
        engine.mean_statistics()
        if self._state.average:
            self._state.average.mean_statistics(cluster)
        history = engine.collect_history(self._updater)
        if cluster.rank == 0:
            about = partial(
                companion.Companion,
                seed=self._seed,
                ranks=cluster.size,
                batch=batch,
                by_rank=[json.loads(data) for data in by_rank],
                plan=plan.decode(),
            )
            files = self._writer.start(self._net, self._state, history, about, periodic=not wait)
        # The weights' file has the mean over ranks, but the ranks go on with their own, now and
        # when they resume: a run must not depend in its last bits on when snapshots were taken.
        resuming.restore_statistics(self._state, self._net, cluster, record["statistics"])
        if cluster.rank != 0:
            return ""
        error = self._writer.wait() if wait else None
        if error is not None:
            raise error
        return files.weights

    def write_best(self) -> None:
        """Let rank 0 write the weights of the test that has just ended."""
        if self._cluster.rank == 0:
            self._writer.write_best(self._net, self._state)

    def restore(self, path: str, engine: Engine, batch: int) -> None:
        """Take over the solver state in ``path`` of rank 0, and its companion if there is one.

        The engine resumes its plan at its next start.
        """
        state, cluster, about = self._state, self._cluster, None
        if cluster.rank == 0:
            about = snapshots.restore(path, self._net, self._updater.method, state)
        self._writer.last_good = path
        if cluster.size > 1:
            counters = np.array([state.iteration, state.learning_rate.current_step], np.int64)
            cluster.broadcast(counters)
            state.iteration, state.learning_rate.current_step = counters.tolist()
        encoded = cluster.broadcast_bytes(about.encode() if about else None)
        if encoded:
            about = companion.decode(encoded)
            if cluster.rank == 0:
                resuming.log_changes(about, cluster.size, batch)
            resuming.go_on(about, state, self._net, self._test_nets, cluster)
            if about.ranks == cluster.size:
                engine.resume_plan(about.plan.encode())
        state.before_test = None
        state.forget_rate()

    def take_over(self, checkpoint: Checkpoint | None, batch: int, engine: Engine) -> None:
        """Take over the newest checkpoint, and what the ranks that have one know themselves."""
        state, cluster = self._state, self._cluster
        told = json.dumps(checkpoint.tell() if checkpoint else None).encode()
        root, survivors = newest([json.loads(data) for data in cluster.gather_bytes(told)])
        shared = b""
        if cluster.rank == root:
            assert checkpoint is not None
            checkpoint.restore(self._net, self._updater.method, state.average)
            values = {name: getattr(checkpoint, name) for name in _SHARED}
            seconds = time.monotonic() - checkpoint.began
            shared = json.dumps([seconds, values]).encode()
        seconds, values = json.loads(cluster.broadcast_bytes(shared, root))
        state.began = time.monotonic() - seconds
        self._share_from(root, engine)
        by_rank = filled_up(survivors, values["ranks"])
        about = companion.RunRecord(**values, by_rank=by_rank)
        if cluster.rank == 0 and about.batch != batch:
            resuming.log_batch(about, batch)
        resuming.go_on(about, state, self._net, self._test_nets, cluster)
        state.iteration = about.iteration
        if cluster.rank < len(survivors):
            state.resumed_statistics = survivors[cluster.rank]["statistics"]
        if about.ranks == cluster.size:
            engine.resume_plan(about.plan.encode())
        state.before_test = None
        state.forget_rate()

    def _share_from(self, root: int, engine: Engine) -> None:
        """Give all ranks what rank ``root`` has restored, unless rank 0 does so at the start."""
        if root:
            method, average = self._updater.method, self._state.average
            sharing.share_weights(self._net, self._cluster, root)
            sharing.share_history(method, self._net.parameters, engine, self._cluster, root)
            if average:
                average.share(self._cluster, root)

    def close(self) -> None:
        """Wait until the last snapshot is written."""
        self._writer.close()
