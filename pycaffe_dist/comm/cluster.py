"""The ranks of a run: their names, small messages between them, and the end of the run by one."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from pycaffe_dist.comm.measured import NO_CONTENTION, Link, Measured
from pycaffe_dist.config import ClusterSettings
from pycaffe_dist.errors import ClusterError
from pycaffe_dist.launch import environment


class Cluster(abc.ABC):
    """The ranks of a run, seen from one of them.

    ``rank`` of ``size`` ranks; ``hosts`` names every rank's host; ``local_rank`` of ``local_size``
    ranks on this host, which use ``local_cores``; ``threads`` is this rank's share of them;
    ``measured`` has the measurements of `pycaffe_dist.calibration`.  Every operation is collective:
    all ranks call the same ones in the same order, from their main threads.  Use it as a context:
    an exception that leaves it ends the run on all ranks; while this rank ``may_leave``, an
    unexpected one ends this rank alone.  In every iteration, ``has_request`` says whether this rank
    has a request to all; ``is_requested`` is whether some rank had one in the iteration before.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    hosts: tuple[str, ...]
    local_cores: int
    threads: int
    measured: Measured
    may_leave: bool = False
    has_request: Callable[[], bool] = staticmethod(lambda: False)
    is_requested: bool = False
    # Seconds for a byte from a GPU to the host and back, if gradients are on GPUs.
    staging_seconds: float = 0.0

    @property
    def host(self) -> str:
        """This rank's host."""
        return self.hosts[self.rank]

    @property
    def owners(self) -> tuple[int, ...]:
        """The ranks that own a parameter server's shards: all, unless there are server ranks."""
        return tuple(range(self.size))

    @property
    def serves(self) -> bool:
        """Whether this rank only serves parameters to the ranks that train."""
        return False

    @abc.abstractmethod
    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        """Overwrite ``array`` (C-contiguous) with rank ``root``'s; return it."""

    @abc.abstractmethod
    def broadcast_bytes(self, data: bytes | None, root: int = 0) -> bytes:
        """Return the bytes of rank ``root``; the others' are not read."""

    @abc.abstractmethod
    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Return a few bytes of every rank, in the order of ranks."""

    @abc.abstractmethod
    def sum(self, values: Any) -> np.ndarray:
        """Return the sum over ranks of a small array, bit for bit the same on all of them."""

    @abc.abstractmethod
    def max(self, values: Any) -> np.ndarray:
        """Return the elementwise maximum over ranks of a small array."""

    def mean(self, values: Any) -> np.ndarray:
        """Return the mean over ranks of a small array, bit for bit the same on all of them."""
        return self.sum(values) / self.size

    def mean_on_rank_0(self, values: Any) -> np.ndarray | None:
        """Return the mean over ranks on rank 0; the others get None without waiting."""
        return self.mean(values)

    @abc.abstractmethod
    def barrier(self) -> None:
        """Return when all ranks have come here."""

    @abc.abstractmethod
    def agree_max(self, values: Any, lag: int = 1) -> np.ndarray:
        """Return the elementwise maximum over ranks of the values ``lag`` calls ago (first 0).

        ``values`` are a number or a small array of numbers, of one shape in all calls.

        A loop whose passes take longer than a message never waits: the values are sent during the
        pass.  A single rank gets its own value at once.
        """

    @property
    def is_elastic(self) -> bool:
        """Whether the other ranks go on when one dies."""
        return False

    def commit(self) -> None:  # noqa: B027 (for elastic clusters)
        """Return when all ranks have come here; raises RankLost on all of them or on none."""

    def end_waiting(self) -> None:  # noqa: B027 (for elastic clusters)
        """Let all waiting, from now on, end with `JobEnds`; a signal's handler may call it."""

    def recover(self) -> str:
        """After a `RankLost`, become the cluster of the ranks that are left and of new ones.

        Returns in words who was lost.  Raises RankLost again if one more dies meanwhile.
        """
        raise ClusterError("this cluster cannot go on without one of its ranks")

    def change(self, stay: Sequence[bool], join: Sequence[str]) -> None:
        """End all messages, so that `recover` makes a cluster of other ranks.

        ``stay`` says which ranks do, and ``join`` has the hosts of new ones.  All ranks call it
        after the same `commit`; those that leave do not return.
        """
        raise ClusterError("this cluster cannot change the number of its ranks")

    @abc.abstractmethod
    def abort(self, error: BaseException | str) -> None:
        """End the run on all ranks, with one message that names this rank, its host and ``error``.

        Does not return when there are other ranks.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Leave the cluster, once all ranks have come here; a second call does nothing."""

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            self.abort(error)
        self.close()


class LocalCluster(Cluster):
    """One rank on its own, without MPI."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.local_rank, self.local_size = 0, 1
        self.hosts = (environment.host_name(),)
        self.local_cores = len(environment.cores(environment.usable_cpus()))
        self.threads = self.local_cores
        self.measured = Measured(Link(latency=0.0, bandwidth=float("inf")), NO_CONTENTION)

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        """Return ``array``."""
        return array

    def broadcast_bytes(self, data: bytes | None, root: int = 0) -> bytes:
        """Return ``data``."""
        return data or b""

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Return ``data`` alone."""
        return [data]

    def sum(self, values: Any) -> np.ndarray:
        """Return a copy of ``values``."""
        return np.array(values)

    def max(self, values: Any) -> np.ndarray:
        """Return a copy of ``values``."""
        return np.array(values)

    def barrier(self) -> None:
        """Return at once."""

    def agree_max(self, values: Any, lag: int = 1) -> np.ndarray:
        """Return ``values``."""
        return np.array(values)

    def abort(self, error: BaseException | str) -> None:
        """Do nothing: the error itself goes on to the caller."""

    def close(self) -> None:
        """Do nothing."""


def detect(settings: ClusterSettings | None = None) -> Cluster:
    """Return the MPI cluster that a launcher started this process in, else a local one.

    Raises ClusterError when there is a launcher and MPI cannot be used, or when server ranks leave
    none to train.
    """
    settings = settings or ClusterSettings()
    launch = environment.find()
    if launch is None:
        if settings.server_ranks:
            raise ClusterError(
                f"--server-ranks={settings.server_ranks} needs several ranks, started by mpirun"
            )
        return LocalCluster()
    from pycaffe_dist.comm.mpi import MPICluster

    return MPICluster(launch, settings)
