"""How computing and messages slow each other down, measured while both run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pycaffe_dist.calibration.link import (
    AT_A_TIME,
    LARGE_BYTES,
    exchange_bytes,
    link_of,
    saturate,
)
from pycaffe_dist.calibration.products import FLOPS, multiply_until, product_rate
from pycaffe_dist.comm.measured import Contention

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.comm.mpi import MPICluster
    from pycaffe_dist.comm.tasks import Task

# Seconds of load on links and cores at once, and the least and most large messages meanwhile.
_SECONDS = 0.1
_LARGE = AT_A_TIME, 48
# The number of small exchanges, of two messages each like most exchanges.
_SMALL = 24
_ROUNDS = 2
# The least share that is taken for real.
_LEAST_SHARE = 0.05


def contention_of(cluster: Cluster) -> Contention:
    """Return the remaining share of both rates while all ranks compute and exchange at once.

    Measured at the first call, in two tenths of a second or so: where ranks have few cores, the
    network's own work slows the kernels down, and they the messages.
    """
    if cluster.measured.contention is None:
        cluster.measured.contention = _measure(cast("MPICluster", cluster))
    return cluster.measured.contention


def _measure(cluster: MPICluster) -> Contention:
    """Let all ranks compute while they send to the next host; all must call it together."""
    values = cluster.mean(np.array([*_beside_large(cluster), _per_message(cluster)])).tolist()
    computing, wire = (min(max(share, _LEAST_SHARE), 1.0) for share in values[:2])
    return Contention(computing, wire, values[2])


def _multiply_beside(cluster: MPICluster, task: Task) -> tuple[float, Any]:
    """Return the median time of a product during a task, and the task's result."""
    handle = cluster.communication.submit(task, "measuring contention")
    return multiply_until(lambda: handle.done), handle.wait()


def _beside_large(cluster: MPICluster) -> tuple[float, float]:
    """Return the rates of products and of the wire beside each other, as fractions of alone."""
    link, rate = link_of(cluster), product_rate(cluster)
    messages = int(np.clip(_SECONDS * link.bandwidth / LARGE_BYTES, *_LARGE))
    cluster.barrier()
    task = saturate(cluster.control, cluster.to_next_host, messages)
    product, (seconds, nbytes) = _multiply_beside(cluster, task)
    return FLOPS / product / rate, nbytes / seconds / link.bandwidth


def _per_message(cluster: MPICluster) -> float:
    """Return the processor time that a message takes from kernels, besides the time for its bytes.

    After a product has filled the caches, it is several times the time of messages alone.
    """
    thread = cluster.communication
    cluster.barrier()
    before = thread.call(time.thread_time, "processor time").wait()
    for _ in range(_SMALL):
        task = exchange_bytes(cluster.control, cluster.to_next_host, _ROUNDS)
        _multiply_beside(cluster, task)
    after = thread.call(time.thread_time, "processor time").wait()
    return (after - before) / (_SMALL * _ROUNDS)
