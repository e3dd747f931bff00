"""The ranks of an MPI job.  Only the communication thread calls MPI."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np

from pycaffe_dist import log
from pycaffe_dist.comm import library
from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.comm.gpu_paths import Peers
from pycaffe_dist.comm.measured import Measured
from pycaffe_dist.comm.recovery import START_SECONDS, Recovery, limited
from pycaffe_dist.comm.rma import Windows
from pycaffe_dist.comm.stall_inspector import StallInspector
from pycaffe_dist.comm.tasks import Handle, Step, Task
from pycaffe_dist.comm.thread import CommunicationThread
from pycaffe_dist.comm.token_bucket import Pace
from pycaffe_dist.config import ClusterSettings
from pycaffe_dist.device import Device
from pycaffe_dist.errors import ClusterError, PcaffeError, RankLost, RanksChange, exit_status
from pycaffe_dist.launch import environment, messages

# Seconds.  When several ranks fail for the same reason, only one should report: while the others
# wait, rank 0 ends them.
_LATER_RANKS_WAIT = 1.0
_NEXT_RANK_WAITS = 0.1
_MOST_WAITING_RANKS = 20
_ABORT_TIMEOUT = 2.0
_FINALIZE_SECONDS = 5.0


class MPICluster(Cluster):
    """The ranks of MPI's world, over mpi4py.

    ``exchange_communicator`` is for exchanges alone, so that only they use its tags; ``control`` is
    for all other messages; ``communication`` runs the tasks of both.  If the last ranks only serve
    parameters, the cluster consists of the workers; the servers have a cluster of their own.
    ``requests`` and ``answers`` connect workers and servers, by their ranks in the world;
    ``world_rank`` is this process's.  Raises ClusterError when MPI is missing, does not suit the
    launcher, does not allow a thread other than the main one to call it, or leaves no rank to
    train.
    """

    def __init__(self, launch: environment.Launch, settings: ClusterSettings):
        environment.prepare_mpi()
        self._mpi = library.load(launch)
        self._closed = False
        self.measured = Measured()
        self._agreements: deque[Handle] = deque()
        self._settings = settings
        self.bandwidth_limit = settings.bandwidth_limit
        self._node: Any = None
        self._windows: Windows | None = None
        self._peers: Peers | None = None
        self._has_changed = False  # whether ranks were lost
        self._next_size = 0  # the number of ranks after a change
        self._new_hosts: Sequence[str] = ()  # the hosts of the ranks that join then
        self.may_leave = False
        self.communication = CommunicationThread(
            self._mpi.Request.Testall,
            settings.stall_seconds,
            f"a rank on {environment.host_name()}",
            Pace(settings.bandwidth_limit),
            settings.shutdown_seconds,
        )
        self._recovery = Recovery(self._mpi) if settings.elastic else None
        self._finalize, world = self.communication.call(self._initialise, "MPI_Init").wait()
        size = world.Get_size()
        if not self._joins and launch.size not in (0, size):
            raise ClusterError(
                f"{launch.name} started {launch.size} ranks, but MPI sees {size}: mpi4py uses "
                f"{self._mpi.Get_library_version().split(',')[0]}, which is not the MPI of the "
                "launcher (with srun, choose its plugin: srun --mpi=pmix)"
            )
        self.communication.call(lambda: self._duplicate(world), "MPI_Comm_dup").wait()
        self._find_place()
        self._previous_hook = sys.excepthook
        sys.excepthook = self._uncaught
        atexit.register(self.close)

    def _initialise(self) -> tuple[bool, Any]:
        """Start MPI in the thread that will use it; return whether we must end it, and all ranks.

        A process that takes a lost rank's place joins the others.
        """
        mpi = self._mpi
        ours = not mpi.Is_initialized()
        with limited(START_SECONDS if environment.is_replacement() else 0):
            level = mpi.Init_thread(mpi.THREAD_SERIALIZED) if ours else mpi.Query_thread()
            if level < mpi.THREAD_SERIALIZED:
                names = {mpi.THREAD_SINGLE: "SINGLE", mpi.THREAD_FUNNELED: "FUNNELED"}
                raise ClusterError(
                    f"{mpi.Get_library_version().split(',')[0]} offers MPI_THREAD_{names[level]}; "
                    "pcaffe needs MPI_THREAD_SERIALIZED, because a thread of its own talks to MPI"
                )
            parent = mpi.Comm.Get_parent()
            self._joins = parent != mpi.COMM_NULL
            return ours, parent.Merge(high=True) if self._joins else mpi.COMM_WORLD

    def _find_place(self) -> None:
        """Find out this rank and the others' hosts; all ranks call it."""
        self.rank = self.world_rank = self.control.Get_rank()
        self.size = self._world_size = self.control.Get_size()
        self._workers = self.size - self._settings.server_ranks
        host = environment.host_name()
        if self._has_changed or self._joins:
            environment.set_rank(self.rank)
            log.change_rank(self.rank)
        else:
            host = _name_of_host(self._settings.hosts, self.rank, self.size) or host
        self._host = host
        self.communication.who = f"rank {self.rank} of {self.size} on {host}"
        self._share_host(host)
        if self.rank == 0:
            messages.report(messages.HOSTS, " ".join(self.hosts))
        if self.has_servers:
            self._separate_servers()
        self.communication.call(self._watch_others, "inquiries").wait()

    def _duplicate(self, world: Any) -> None:
        """Make the communicators; in MPI's thread."""
        self.control = self._world = world.Dup()
        self.exchange_communicator, self._questions = world.Dup(), world.Dup()
        self.requests, self.answers = world.Dup(), world.Dup()
        if self._recovery is not None:
            used = self.control, self.exchange_communicator, self._questions
            self._recovery.start(world.Dup(), (*used, self.requests, self.answers))
            self.communication.on_error = self._recovery.lost

    def _watch_others(self) -> None:
        """Look for questions of ranks that wait for long, and for deaths."""
        thread = self.communication
        thread.inquiry = StallInspector(self._mpi, self._questions, thread.status, thread.who)
        if self._recovery is not None:
            self._recovery.hosts = self.hosts
            thread.watch("deaths", self._recovery.look)

    @property
    def is_elastic(self) -> bool:
        """Whether the other ranks go on when one dies."""
        return self._recovery is not None

    def commit(self) -> None:
        """Return when all ranks have come here; raises RankLost on all of them or on none."""
        if self._recovery is None:
            return
        try:
            self.run(self._recovery.agreement(), "agreement")
        except RankLost:
            if not self._recovery.has_agreed:
                raise

    def recover(self) -> str:
        """After a `RankLost`, become the cluster of the ranks that are left and of new ones.

        Returns in words who was lost.  Raises RankLost again if one more dies meanwhile.
        """
        recovery = self._recovery
        assert recovery is not None
        size = self._next_size or (self._world_size if self._settings.respawn else 0)
        lost = self.communication.restart(
            lambda: recovery.rejoin(size, self._duplicate, self._new_hosts), "MPI_Comm_shrink"
        )
        self._has_changed = True
        self.measured = Measured()
        self._agreements.clear()
        self.is_requested = False
        self._node = self._windows = self._peers = None
        self._find_place()
        self._next_size, self._new_hosts = 0, ()
        return lost

    def change(self, stay: Sequence[bool], join: Sequence[str]) -> None:
        """End all messages, so that `recover` makes a cluster of other ranks."""
        if not stay[self.rank]:
            _kill_this_process()
        self._next_size, self._new_hosts = sum(stay) + len(join), join

        def end() -> None:
            raise RanksChange(f"from now on there are {self._next_size} ranks")

        with suppress(RankLost):
            self.communication.call(end, "change").wait()

    def end_waiting(self) -> None:
        """Let all waiting, from now on, end with `JobEnds`; a signal's handler may call it."""
        if self._recovery is not None:
            self._recovery.job_ends = True

    @property
    def has_servers(self) -> bool:
        """Whether some ranks only serve parameters."""
        return self._settings.server_ranks > 0

    @property
    def serves(self) -> bool:
        """Whether this rank only serves parameters."""
        return self.world_rank >= self._workers

    @property
    def owners(self) -> tuple[int, ...]:
        """The ranks, in the world, that own a parameter server's shards."""
        first = self._workers if self.has_servers else 0
        return tuple(range(first, self._world_size))

    def _separate_servers(self) -> None:
        """Make this the cluster of the workers, or of the servers."""
        if self._workers < 1:
            raise ClusterError(
                f"--server-ranks={self._settings.server_ranks} leaves none of {self.size} ranks to "
                "train"
            )

        def split() -> None:
            color = int(self.serves)
            self.control = self._world.Split(color, self.world_rank)
            self.exchange_communicator = self._world.Split(color, self.world_rank)

        self.communication.call(split, "split").wait()
        first = self._workers if self.serves else 0
        self.hosts = self.hosts[first:] if self.serves else self.hosts[: self._workers]
        self.rank, self.size = self.world_rank - first, len(self.hosts)
        together = [rank for rank, name in enumerate(self.hosts) if name == self._host]
        self.local_rank, self.local_size = together.index(self.rank), len(together)

    def _share_host(self, host: str) -> None:
        """Find the ranks that share this host, and divide its cores among them."""
        widened = environment.undo_default_binding(self.size)
        mine = environment.cores(environment.usable_cpus())
        known = [
            text.decode().split("\n")
            for text in self.gather_bytes("\n".join([host, *map(str, mine)]).encode())
        ]
        self.hosts = tuple(name for name, *_ in known)
        together = [rank for rank, name in enumerate(self.hosts) if name == host]
        self.local_rank, self.local_size = together.index(self.rank), len(together)
        of_all = [set(map(int, known[rank][1:])) for rank in together]
        self.local_cores = len(set().union(*of_all))
        self.threads = environment.share_of_cores(mine, of_all)
        if widened:
            log.logger.info(
                "mpirun tied every rank to one core; using %d (mpirun --bind-to none)", self.threads
            )

    def node_communicator(self) -> Any:
        """Return the communicator of the ranks that share this host, in the cluster's order.

        The first call is collective.
        """
        if self._node is None:
            color = self.hosts.index(self.host)
            self._node = self.communication.call(
                lambda: self.exchange_communicator.Split(color), "MPI_Comm_split"
            ).wait()
        return self._node

    @property
    def windows(self) -> Windows:
        """The memory windows to which other ranks of the cluster write, or which they share."""
        if self._windows is None:

            def call(function: Callable[[], Any], name: str) -> Any:
                return self.communication.call(function, name).wait()

            self._windows = Windows(self._mpi, call, max(map(self.hosts.count, self.hosts)))
        return self._windows

    def run(self, task: Task, name: str) -> Any:
        """Return the result of a task of the communication thread."""
        return self.communication.submit(task, name).wait()

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        """Overwrite ``array`` (C-contiguous) with rank ``root``'s; return it."""

        def task() -> Task:
            yield Step([self.control.Ibcast(array, root)])

        self.run(task(), "broadcast")
        return array

    def broadcast_bytes(self, data: bytes | None, root: int = 0) -> bytes:
        """Return the bytes of rank ``root``; the others' are not read."""
        count = np.array([len(data or b"")], np.int64)
        self.broadcast(count, root)
        if self.rank == root:
            return self.broadcast(np.frombuffer(bytearray(data or b""), np.uint8), root).tobytes()
        return self.broadcast(np.empty(int(count[0]), np.uint8), root).tobytes()

    def _allgather(self, values: np.ndarray, name: str) -> Handle:
        """Start to collect an array of one shape from all ranks, as rows in the order of ranks."""
        values = np.asarray(values, order="C")
        rows = np.empty((self.size, *values.shape), values.dtype)

        def task() -> Task:
            yield Step([self.control.Iallgather(values, rows)])
            return rows

        return self.communication.submit(task(), name)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Return a few bytes of every rank, in the order of ranks."""
        counts = self._allgather(np.array(len(data)), "allgather").wait()
        padded = np.frombuffer(data.ljust(int(counts.max()), b"\0"), np.uint8)
        rows = self._allgather(padded, "allgather").wait()
        return [row[:count].tobytes() for row, count in zip(rows, counts)]

    def sum(self, values: Any) -> np.ndarray:
        """Return the sum over ranks of a small array, bit for bit the same on all of them."""
        return self._allgather(np.asarray(values), "sum").wait().sum(axis=0)

    def mean_on_rank_0(self, values: Any) -> np.ndarray | None:
        """Return the mean over ranks on rank 0; the others get None without waiting."""
        handle = self._allgather(np.asarray(values), "mean")
        return None if self.rank else handle.wait().sum(axis=0) / self.size

    def max(self, values: Any) -> np.ndarray:
        """Return the elementwise maximum over ranks of a small array."""
        return self._allgather(np.asarray(values), "max").wait().max(axis=0)

    def barrier(self) -> None:
        """Return when all ranks have come here."""

        def task() -> Task:
            yield Step([self.control.Ibarrier()])

        self.run(task(), "barrier")

    def agree_max(self, values: Any, lag: int = 1) -> np.ndarray:
        """Return the elementwise maximum over ranks of the values of ``lag`` calls ago."""
        mine = np.array(values)
        if self.size == 1:
            return mine
        agreed = np.zeros_like(mine)
        if len(self._agreements) == lag:
            agreed = self._agreements.popleft().wait().max(axis=0)
        self._agreements.append(self._allgather(mine, "agree_max"))
        return agreed

    def peers(self, device: Device) -> Peers:
        """Return the paths between the ranks' GPUs; ``device`` is this rank's GPU, if it has one.

        The first call with a device is collective.
        """
        if self._peers is None or self._peers.device is not device:
            if self._peers is not None:
                self._peers.close()
            self._peers = Peers(self, device)
            self.staging_seconds = self._peers.staging_seconds
            if device.is_gpu:
                log.logger.info("Gradients go from GPU to GPU by %s", self._peers.describe())
        return self._peers

    @property
    def to_next_host(self) -> int:
        """The distance, in ranks, to the first rank of the next host: its link is measured."""
        on_first_host = self.hosts.count(self.hosts[0])
        return on_first_host % self.size or 1 % self.size

    def abort(self, error: BaseException | str) -> None:
        """End the run on all ranks, with one message that names this rank, its host and ``error``.

        One rank alone does nothing: the error itself goes on to the caller.  Ranks that train on
        when others are lost do so if the error is this rank's own.
        """
        if self._world_size == 1:
            return
        if self.may_leave and not isinstance(error, str | PcaffeError | KeyboardInterrupt):
            log.fatal(error, f"rank {self.world_rank} of {self._world_size} on {self._host}: ")
            _kill_this_process()
        if self.world_rank:
            rank = min(self.world_rank, _MOST_WAITING_RANKS)
            time.sleep(_LATER_RANKS_WAIT + _NEXT_RANK_WAITS * rank)
        if not isinstance(error, BaseException):
            error = ClusterError(error)
        status = exit_status(error)
        messages.report(messages.FAILED, f"rank {self.world_rank} on {self._host}")
        log.fatal(error, f"rank {self.world_rank} of {self._world_size} on {self._host}: ")
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            self.communication.call(lambda: self._world.Abort(status), "abort").wait(_ABORT_TIMEOUT)
        finally:
            # The launcher then ends the other ranks.
            os._exit(status)

    def close(self) -> None:
        """Leave the cluster, once all ranks have come here; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        sys.excepthook = self._previous_hook
        if self._peers is not None:
            self._peers.close()
        thread = self.communication
        seconds = _FINALIZE_SECONDS if self.is_elastic else None
        try:
            thread.submit(self._meet(), "leaving", patient=self.has_servers).wait()
            if self._has_changed or self._joins:
                raise RankLost("MPI_Finalize of Open MPI 5 may wait for the lost for ever")
            thread.call(self._finish, "MPI_Finalize").wait(seconds)
        except (RankLost, TimeoutError):  # the work is done
            atexit.register(_end_process, self._mpi)
            seconds = 0
        thread.close(seconds)

    def _meet(self) -> Task:
        """End when all ranks have come here, and no message is under way."""
        yield Step([self._world.Ibarrier()])
        # Messages without a waiting rank (of a mean on rank 0) may arrive after the barrier's.
        while not self.communication.runs_only_one:
            yield Step([])

    def _finish(self) -> None:
        """End MPI, in its thread."""
        self.communication.end_watches()
        if self._windows is not None:
            self._windows.free()
        if self._recovery is not None:
            self._recovery.stop()
        if self._finalize:
            # mpi4py's would keep all other threads of Python waiting.
            ctypes.CDLL(self._mpi.__file__).MPI_Finalize()

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """End the run on all ranks when this one's program ends with an exception."""
        self.abort(error)
        self._previous_hook(kind, error, trace)


def _kill_this_process() -> None:
    """End this rank alone: Open MPI 5 tells the others if a signal does, not of an exit status."""
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _end_process(mpi: Any) -> None:
    """End this process, whose work is done, without MPI_Finalize."""
    sys.stdout.flush()
    # Without it, mpirun would take this for a failure.
    if leave := getattr(ctypes.CDLL(mpi.__file__), "PMIx_Finalize", None):
        leave(None, 0)
    os._exit(0)


def _name_of_host(hosts: Sequence[str], rank: int, size: int) -> str:
    """Return the name that a rank must use for its host; empty if it is free."""
    if len(hosts) not in (0, size):
        raise ClusterError(f"{len(hosts)} hosts are named for {size} ranks: {', '.join(hosts)}")
    return hosts[rank] if hosts else ""
