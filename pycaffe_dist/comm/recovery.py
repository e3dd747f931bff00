"""Goes on without ranks that died, by MPI's fault tolerance (ULFM: Bland et al., 2013).

After a death, every rank revokes the communicators, so that no other waits for messages that never
come, ends the agreement that is under way, and takes part in a smaller communicator.  An agreement
(`Recovery.agreement`) tells all living ranks the same, whenever a rank dies.  All of this happens
in the thread that talks to MPI, while layers compute.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from pycaffe_dist.comm.tasks import Step, Task
from pycaffe_dist.errors import ClusterError, JobEnds, RankLost, RanksChange
from pycaffe_dist.launch import environment
from pycaffe_dist.launch.mpirun import FAULT_TOLERANCE

# Set by Open MPI's mpirun --with-ft ulfm.
_ENABLED = "OMPI_MCA_mpi_ft_enable"
# How often a rank looks whether another one has died, and polls an agreement (seconds).
_LOOK_SECONDS = 0.02
_POLL_SECONDS = 1e-4
_DEATH_TAG = 1
# Within this time, a new process must have joined the others.
START_SECONDS = 60


class _Agreement:
    """One round of MPI's fault-tolerant agreement: whether all are ``fine``; not after a death."""

    def __init__(self, mpi: Any, world: Any, fine: bool):
        self._mpi, self._flag = mpi, np.array([fine], np.int32)
        self._request = world.Iagree(self._flag)
        self.result: bool | None = None

    def test(self) -> bool:
        """Tell whether it has ended."""
        if self.result is None:
            try:
                if self._request.Test():
                    self.result = bool(self._flag[0])
            except self._mpi.Exception:
                self.result = False
        return self.result is not None


class Recovery:
    """The deaths of ranks of a ``world``, seen from one of them; see the module.

    ``hosts`` has every rank's host as soon as it is known.
    """

    def __init__(self, mpi: Any):
        """Raise ClusterError if this MPI is not fault-tolerant."""
        if os.environ.get(_ENABLED) != "1":
            version = mpi.Get_library_version().split(",")[0]
            raise ClusterError(
                f"--elastic needs an MPI with fault tolerance (ULFM), and {version} was started "
                f"without: use pcaffe launch --elastic, or mpirun {' '.join(FAULT_TOLERANCE)} of "
                "Open MPI 5; or pcaffe launch --restarts, which starts again from the last snapshot"
            )
        self._mpi = mpi
        self._world: Any = None
        self._others: list[Any] = []
        self._agreement: _Agreement | None = None
        self._survivors: Any = None
        self._alarm: Any = None
        self._next_look = 0.0
        self.hosts: Sequence[str] = ()
        self._former_hosts: Sequence[str] = ()
        self.has_agreed = False  # whether the last agreement that this rank asked for succeeded
        self.job_ends = False  # set by a signal's handler

    def start(self, world: Any, others: Iterable[Any]) -> None:
        """Guard ``others`` by a communicator of the same ranks for this alone; in MPI's thread."""
        self._world, self._others = world, list(others)
        for communicator in (world, *self._others):
            communicator.Set_errhandler(self._mpi.ERRORS_RETURN)
        self._agreement = self._survivors = None
        self.has_agreed = False
        # It never arrives, but ends with an error when any rank dies.
        self._alarm = world.Irecv(np.empty(1, np.uint8), self._mpi.ANY_SOURCE, _DEATH_TAG)

    def look(self, now: float) -> bool:
        """Raise MPI's exception if a rank has died, or JobEnds."""
        if self.job_ends:
            raise JobEnds("mpirun ends the job")
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self._alarm.Test()
        return False

    def stop(self) -> None:
        """End the watch before MPI ends; in MPI's thread."""
        self._alarm.Cancel()
        self._alarm.Free()

    def agreement(self) -> Task:
        """Return a task that ends once all ranks have come here; it fails on all or on none.

        After an error `has_agreed` tells whether it had succeeded before.
        """
        self.has_agreed = False
        self._agreement = agreement = _Agreement(self._mpi, self._world, True)
        everybody = tuple(range(self._world.Get_size()))
        yield Step([], late=lambda: () if agreement.test() else everybody)
        self._agreement = None
        if not agreement.result:
            raise RankLost("the ranks did not agree")
        self.has_agreed = True

    def lost(self, error: Exception) -> ClusterError | None:
        """Return the error for all tasks after an exception of MPI; None unless a rank has died.

        Then the survivors, who all come here, have a communicator of their own.  If the job ends,
        this rank asks nobody.
        """
        if isinstance(error, JobEnds):
            return error
        ended = isinstance(error, RankLost)
        if not (ended or isinstance(error, RanksChange) or self._is_death(error)):
            return None
        for communicator in (self._world, *self._others):
            with suppress(self._mpi.Exception):
                communicator.Revoke()
        while not ended:
            ended = not self._end_agreement()
        self._survivors, self._former_hosts = self._world.Shrink(), self.hosts
        return RankLost(self._names(self._world.Get_group(), self._survivors))

    def _is_death(self, error: Exception) -> bool:
        mpi = self._mpi
        if not isinstance(error, mpi.Exception):
            return False
        kind = error.Get_error_class()
        if kind in (mpi.ERR_PROC_FAILED, mpi.ERR_PROC_FAILED_PENDING, mpi.ERR_REVOKED):
            return True
        revoked = any(each.Is_revoked() for each in (self._world, *self._others))
        return kind == mpi.ERR_IN_STATUS and (revoked or self._world.Get_failed().Get_size() > 0)

    def _end_agreement(self) -> bool:
        """Take part in agreements until all ranks know of the death; return the last result.

        A rank may have begun one that this rank has not: all must take part in each.
        """
        mine, self._agreement = self._agreement, None
        if mine is None:
            return self._agree(self._world, False)
        self.has_agreed = self._end(mine)
        return self.has_agreed

    def rejoin(self, size: int, join: Callable[[Any], None], hosts: Sequence[str] = ()) -> str:
        """Call ``join`` with the communicator of the ranks that live on; return who was lost.

        In MPI's thread, on all living ranks.  If these are fewer than ``size``, new processes join
        them, on ``hosts`` if mpirun is not to choose.  Begins again if more ranks die meanwhile.
        """
        group, living = self._world.Get_group(), self._survivors
        while True:
            number = max(0, size - living.Get_size())
            living.Set_errhandler(self._mpi.ERRORS_RETURN)
            # MPI_Comm_spawn would wait for a dead rank for ever.
            succeeded = self._agree(living, True)
            try:
                if succeeded:
                    join(self._with_new_ranks(living, number, hosts) if number else living)
            except self._mpi.Exception:
                succeeded = False
            if self._agree(living, succeeded):
                return self._names(group, living)
            living = living.Shrink()

    def _with_new_ranks(self, living: Any, number: int, hosts: Sequence[str]) -> Any:
        """Return a communicator of the living ranks, then of new ones with this one's command."""
        variables = environment.passed_on() | {environment.CHANGED_RANK: str(living.Get_size())}
        variables[_ENABLED] = "1"
        # `env` sets variables for them, which MPI_Comm_spawn has no portable way to do.
        command = [f"{name}={value}" for name, value in variables.items()]
        command += [sys.executable, "-m", "pycaffe_dist", *sys.argv[1:]]
        info = self._mpi.Info.Create()
        if len({*hosts, *self._former_hosts}) > 1 and number == len(hosts):
            slots = ",".join(f"{host}:{hosts.count(host)}" for host in dict.fromkeys(hosts))
            info.Set("host", slots)
            if not {*hosts} <= {*self._former_hosts}:
                info.Set("PMIX_ADD_HOST", slots)
        # If a new process dies later, Open MPI may not release the others, which end then.
        with limited(START_SECONDS * (1 if living.Get_rank() == 0 else 2)):
            return living.Spawn("env", command, maxprocs=number, info=info).Merge(high=False)

    def _agree(self, communicator: Any, fine: bool) -> bool:
        return self._end(_Agreement(self._mpi, communicator, fine))

    def _end(self, agreement: _Agreement) -> bool:
        while not agreement.test():
            time.sleep(_POLL_SECONDS)
        return bool(agreement.result)

    def _names(self, group: Any, living: Any) -> str:
        dead = group.Difference(group, living.Get_group())
        ranks = dead.Translate_ranks(range(dead.Get_size()), group) if dead.Get_size() else []
        hosts = self._former_hosts
        named = [f"rank {rank} on {hosts[rank]}" if hosts else f"rank {rank}" for rank in ranks]
        return f"{' and '.join(named)} {'is' if len(named) < 2 else 'are'} lost"


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """End this process by a signal if the block takes more than ``seconds``; 0: no limit.

    When a new process dies in MPI_Init, the first rank waits for it for ever, and when that dies,
    the new ones do, in MPI functions that Python cannot interrupt.  The death of the first rank
    releases the others, who begin again.
    """
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
