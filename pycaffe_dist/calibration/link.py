"""The latency and bandwidth between two ranks, measured when the run starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pycaffe_dist.comm.measured import Link
from pycaffe_dist.comm.tasks import Step

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.comm.mpi import MPICluster

# Of 1 Gbit/s between four hosts, messages of 512 KiB showed 72 to 92 MB/s, and of 2 MiB 94 to 110.
LARGE_BYTES = 1 << 21
REPETITIONS = 4
AT_A_TIME = 3
TAG = 1


def link_of(cluster: Cluster) -> Link:
    """Return the slowest link between hosts, or between ranks when there is one host.

    Measured at the first call, on all ranks.
    """
    known = cluster.measured
    if known.link is None:
        mpi = cast("MPICluster", cluster)
        task = measure(mpi.control, mpi.to_next_host)
        link = between(*mpi.max(mpi.run(task, "measuring links")).tolist())
        known.link = Link(link.latency, min(link.bandwidth, mpi.bandwidth_limit))
    return known.link


def between(small: float, large: float) -> Link:
    """Return the link on which a one-byte and a large message take these times (seconds)."""
    return Link(small, LARGE_BYTES / max(large - small, 1e-9))


def saturate(
    communicator: Any, shift: int, messages: int
) -> Generator[Step, None, tuple[float, int]]:
    """Send large ``messages`` to rank + ``shift``, and receive equally many, a few at a time.

    Returns the seconds and the bytes sent.
    """
    rank, size = communicator.Get_rank(), communicator.Get_size()
    to, back = (rank + shift) % size, (rank - shift) % size
    out = np.zeros(LARGE_BYTES, np.uint8)
    into = np.empty((AT_A_TIME, LARGE_BYTES), np.uint8)
    started = time.perf_counter()
    for _ in range(-(-messages // AT_A_TIME)):
        requests = [communicator.Irecv(row, back, TAG) for row in into]
        requests += [communicator.Isend(out, to, TAG) for _ in into]
        yield Step(requests, (back,) * AT_A_TIME + (to,) * AT_A_TIME)
    nbytes = -(-messages // AT_A_TIME) * AT_A_TIME * LARGE_BYTES
    return time.perf_counter() - started, nbytes


def exchange_bytes(communicator: Any, shift: int, rounds: int) -> Generator[Step, None, None]:
    """Send a byte to rank + ``shift``, and receive one; repeat it for a number of ``rounds``."""
    rank, size = communicator.Get_rank(), communicator.Get_size()
    to, back = (rank + shift) % size, (rank - shift) % size
    out, into = np.zeros(1, np.uint8), np.empty(1, np.uint8)
    for _ in range(rounds):
        yield Step([communicator.Irecv(into, back, TAG), communicator.Isend(out, to, TAG)])


def _host_zeros(nbytes: int) -> Any:
    return np.zeros(nbytes, np.uint8)


def measure(
    communicator: Any, shift: int, zeros: Callable[[int], Any] = _host_zeros
) -> Generator[Step, None, tuple[float, float]]:
    """Time small and large messages to rank + ``shift`` while they come from rank - ``shift``.

    ``zeros`` returns the arrays for sending and receiving, given a number of bytes.  Returns this
    rank's latency (seconds) and its time for a large message, the best of a few.
    """
    rank, size = communicator.Get_rank(), communicator.Get_size()
    to, back = (rank + shift) % size, (rank - shift) % size
    times = []
    for nbytes in (1, LARGE_BYTES):
        out, into = zeros(nbytes), zeros(nbytes)
        best = float("inf")
        for _ in range(REPETITIONS):
            started = time.perf_counter()
            requests = [
                communicator.Irecv(into, back, TAG),
                communicator.Isend(out, to, TAG),
            ]
            yield Step(requests, (back, to))
            best = min(best, time.perf_counter() - started)
        times.append(best)
    return times[0], times[1]
