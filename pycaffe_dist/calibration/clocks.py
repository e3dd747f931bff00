"""The differences of the ranks' clocks: each host counts its seconds from another moment."""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pycaffe_dist.comm.tasks import Step

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.comm.mpi import MPICluster

ROUNDS = 10
TAG = 2


def clock_ahead(cluster: Cluster) -> tuple[float, float]:
    """Return this rank's time (``time.perf_counter``), and how far it is ahead of rank 0's."""
    if cluster.size == 1:
        return perf_counter(), 0.0
    mpi = cast("MPICluster", cluster)
    return mpi.run(_compare(mpi.control), "comparing clocks")


def _compare(communicator: Any) -> Generator[Step, None, tuple[float, float]]:
    """Compare this rank's clock (``time.perf_counter``) with rank 0's, rank by rank.

    Returns its time and how far it is ahead, in seconds. The shortest round trip counts, because it
    is the most precise: rank 0 is taken to have read its clock in the middle of it.
    """
    rank, size = communicator.Get_rank(), communicator.Get_size()
    theirs = np.zeros(1)
    best, ahead = float("inf"), 0.0
    for other in range(1, size) if rank == 0 else [rank]:
        for _ in range(ROUNDS):
            if rank == 0:
                yield Step([communicator.Irecv(theirs, other, TAG)], (other,))
                yield Step([communicator.Isend(np.array([perf_counter()]), other, TAG)], (other,))
                continue
            sent = perf_counter()
            request = communicator.Isend(np.zeros(1), 0, TAG)
            yield Step([request, communicator.Irecv(theirs, 0, TAG)], (0, 0))
            received = perf_counter()
            if received - sent < best:
                best, ahead = received - sent, (sent + received) / 2 - float(theirs[0])
    return perf_counter(), ahead
