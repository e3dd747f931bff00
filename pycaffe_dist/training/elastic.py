"""Training that goes on when ranks are lost, with the others and with new ones in their place."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import TYPE_CHECKING

from pycaffe_dist import log
from pycaffe_dist.comm.cluster import LocalCluster
from pycaffe_dist.errors import ClusterError, JobEnds, RankLost
from pycaffe_dist.launch import processes
from pycaffe_dist.log import logger
from pycaffe_dist.solvers.checkpoint import Checkpoint, CheckpointKeeper
from pycaffe_dist.training.timeline import Span

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.solvers import Solver

# More losses than this in one iteration end the run: the iteration itself may be the cause.
_MOST_LOSSES = 3


class Attempt:
    """Training from a ``checkpoint``, None at the start of the run, until a rank is lost.

    ``since`` is the time of the last loss (`time.monotonic`), and ``lost`` what was lost.  With
    ``ends`` there is only time for a snapshot.  ``spans`` are those of a timeline so far.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | None = None,
        lost: str = "",
        since: float = 0.0,
        ends: bool = False,
        spans: list[Span] | None = None,
    ):
        self.spans: list[Span] = [] if spans is None else spans
        self.checkpoint, self._lost, self._since, self._ends = checkpoint, lost, since, ends
        self._keeper: CheckpointKeeper | None = None

    def begin(self, solver: Solver, goes_on: bool, least: int) -> None:
        """Let a new solver go on from the checkpoint of some rank, if there is one, and follow it.

        Raises ClusterError, after a snapshot, when fewer than ``least`` ranks are left, or when the
        job ends.
        """
        if goes_on:
            with log.silent() if self._ends else nullcontext():
                solver.take_over(self.checkpoint)
        if self._ends:
            solver.snapshot()
            raise ClusterError(
                f"{self._lost}; the last update was that of iteration {solver.iteration}"
            )
        if solver.cluster.size < least:
            if goes_on:
                solver.snapshot()
            raise ClusterError(
                f"{self._lost}; {solver.cluster.size} ranks are left, fewer than --elastic={least};"
                f" the last update was that of iteration {solver.iteration}"
            )
        solver.cluster.may_leave = True
        solver.callbacks.after_start.append(self._report)
        self._keeper = CheckpointKeeper(solver)

    def _report(self, solver: Solver) -> None:
        if self._lost and solver.cluster.rank == 0:
            logger.warning(
                "%s: %d rank(s) go on with iteration %d, %.2f s later",
                self._lost,
                solver.cluster.size,
                solver.iteration,
                time.monotonic() - self._since,
            )
        self._lost = ""

    def last(self) -> Checkpoint | None:
        """Return the state after the last update that was made."""
        kept = self._keeper.checkpoint() if self._keeper is not None else None
        return kept or self.checkpoint


def train(cluster: Cluster, run: Callable[[Attempt, Cluster], None]) -> None:
    """Call ``run`` until it ends, each time with the ranks that are left.

    Raises ClusterError when too few are left, or when ranks are lost in one iteration again and
    again.  If mpirun ends the job, as it does when it has lost a host, rank 0 writes a snapshot.
    """
    attempt, losses, place = Attempt(), 0, -1
    # pcaffe launch passes SIGTERM on as other signals.
    if cluster.is_elastic and processes.launch_name():
        _end_at_sigterm(cluster)
    while True:
        try:
            return run(attempt, cluster)
        except JobEnds as error:
            checkpoint = attempt.last()
            if cluster.rank or checkpoint is None:
                os._exit(1)
            run(Attempt(checkpoint, str(error), ends=True), LocalCluster())
        except RankLost as error:
            since, lost = time.monotonic(), str(error)
        checkpoint = attempt.last()
        before, place = place, checkpoint.iteration if checkpoint else 0
        losses = losses + 1 if place == before else 1
        if losses > _MOST_LOSSES:
            raise ClusterError(f"{lost}: iteration {place} has lost ranks {losses} times")
        attempt = Attempt(checkpoint, _recover(cluster), since, spans=attempt.spans)


def _end_at_sigterm(cluster: Cluster) -> None:
    """Wait for no other rank after a SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)

    def end(number: int, frame: FrameType | None) -> None:
        cluster.end_waiting()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, end)


def _recover(cluster: Cluster) -> str:
    """Become a cluster without the lost ranks; return in words who was lost."""
    lost = []
    while True:
        try:
            lost.append(cluster.recover())
        except RankLost as error:
            lost.append(str(error))
        else:
            return ", ".join(lost)
