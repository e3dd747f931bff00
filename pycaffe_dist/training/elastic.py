"""Training that goes on when ranks are lost, leave or join."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING

from pycaffe_dist import log
from pycaffe_dist.comm.cluster import LocalCluster
from pycaffe_dist.config import Action
from pycaffe_dist.errors import ClusterError, JobEnds, RankLost, RanksChange
from pycaffe_dist.launch import processes, resizing
from pycaffe_dist.launch.resizing import Request, RequestFile
from pycaffe_dist.log import logger
from pycaffe_dist.profiling import Span
from pycaffe_dist.solvers.checkpoint import Checkpoint, CheckpointKeeper

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.solvers import Solver

# More losses than this in one iteration end the run: the iteration itself may be the cause.
_MOST_LOSSES = 3


class KeptActions:
    """Asks once more, after ranks were lost, for an action that may not have been done before."""

    def __init__(self, source: Callable[[], Action]):
        self._source = source
        self._solver: Solver | None = None
        self._last, self._asked_at = Action.NONE, -1
        self._asks_again = False

    def follow(self, solver: Solver) -> None:
        """Be the source of a solver's actions."""
        # All ranks do what one asks for in the next iteration at the latest.
        self._asks_again = solver.iteration <= self._asked_at + 1
        self._solver, solver.action_source = solver, self

    def __call__(self) -> Action:
        """Return the next action."""
        action = self._last if self._asks_again else self._source()
        self._asks_again = False
        if action is not Action.NONE and self._solver is not None:
            self._last, self._asked_at = action, self._solver.iteration
        return action


class Attempt:
    """Training from a ``checkpoint``, None at the start of the run, until a rank is lost.

    ``since`` is the time of the last loss (`time.monotonic`), and ``lost`` what was lost.  With
    ``ends`` there is only time for a snapshot.  ``spans`` are those of a timeline so far;
    ``request`` becomes that for another number of ranks.
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
        self._silence = ExitStack()
        self.request = Request()

    def begin(self, solver: Solver, goes_on: bool, least: int) -> None:
        """Let a new solver go on from the checkpoint of some rank, if there is one, and follow it.

        Raises ClusterError, after a snapshot, when fewer than ``least`` ranks are left, or when the
        job ends.
        """
        if goes_on:
            with ExitStack() as silence:
                if self._ends:
                    silence.enter_context(log.silent())
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
        if goes_on:
            self._silence.enter_context(log.silent())  # until `_report`

    def end(self) -> None:
        """Let the log be as it was before."""
        self._silence.close()

    def _report(self, solver: Solver) -> None:
        self._silence.close()
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

    def resize(self, solver: Solver, file: RequestFile) -> None:
        """Raise RanksChange, on all ranks, at the end of an iteration if one of them was asked to.

        Running statistics are then means over ranks, as in a snapshot.
        """
        cluster = solver.cluster
        if self._keeper is None or solver.stopping:
            return
        # A rank on its own has nobody to agree with before an update.
        if not (cluster.is_requested or (cluster.size == 1 and cluster.has_request())):
            return
        request = max(map(resizing.decode, cluster.gather_bytes(file.read().encode())))
        if file.done >= request or request.stay(cluster.hosts) == [True] * request.size:
            file.done = request
            return
        if not request.ranks.keys() <= {*cluster.hosts}:
            solver.snapshot()  # mpirun ends if it does not reach a new host
        solver.finish_updates()
        solver.mean_statistics()
        cluster.commit()
        self._keeper.note(solver)
        file.done = self.request = request
        raise RanksChange(f"there are {request.size} ranks from now on")


def train(cluster: Cluster, run: Callable[[Attempt, Cluster], None]) -> None:
    """Call ``run`` until it ends, each time with the ranks that are left, or that are to train.

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
        except RanksChange:
            attempt = _with_other_ranks(attempt, cluster)
            continue
        except RankLost as error:
            since, lost = time.monotonic(), str(error)
        checkpoint = attempt.last()
        before, place = place, checkpoint.iteration if checkpoint else 0
        losses = losses + 1 if place == before else 1
        if losses > _MOST_LOSSES:
            raise ClusterError(f"{lost}: iteration {place} has lost ranks {losses} times")
        attempt = Attempt(checkpoint, _recover(cluster), since, spans=attempt.spans)


def _with_other_ranks(attempt: Attempt, cluster: Cluster) -> Attempt:
    """Go on as one of the ranks that were asked for; those that are to leave end here."""
    since, checkpoint = time.monotonic(), attempt.last()
    request, hosts = attempt.request, cluster.hosts
    cluster.change(request.stay(hosts), request.join(hosts))
    _recover(cluster)
    return Attempt(checkpoint, "the hosts have changed", since, spans=attempt.spans)


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
