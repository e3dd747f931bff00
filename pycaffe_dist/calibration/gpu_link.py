"""How fast two ranks' GPUs exchange messages, on each path that joins them."""

from __future__ import annotations

import time
from typing import cast

import numpy as np

from pycaffe_dist.calibration.link import between, measure
from pycaffe_dist.comm.arrival import in_stream
from pycaffe_dist.comm.gpu_paths import NCCL, Peers
from pycaffe_dist.comm.measured import Link
from pycaffe_dist.device import use
from pycaffe_dist.gpu.base import GPU

# The bytes of a sum that measures NCCL, and the number of sums.
_BYTES = 4 << 20
_REPETITIONS = 4


def gpu_link(peers: Peers, path: str) -> Link:
    """Return how fast two GPUs exchange messages on a path, the slowest two; measured once."""
    if path not in peers.links:
        peers.links[path] = _nccl_link(peers) if path == NCCL else _mpi_link(peers)
    return peers.links[path]


def _mpi_link(peers: Peers) -> Link:
    """Return what `link_of` does, for messages from one GPU's memory to another's."""
    cluster, gpu = peers.cluster, cast(GPU, peers.device)
    task = measure(cluster.control, cluster.to_next_host, lambda n: gpu.zeros(n, np.uint8))
    found = cluster.run(in_stream(gpu, "exchange", task), "measuring links")
    return between(*cluster.max(found).tolist())


def _nccl_link(peers: Peers) -> Link:
    """Return the link on which an allreduce of two rounds takes as long as NCCL's sum."""
    best = [min(_seconds_of_sum(peers, n) for _ in range(1 + _REPETITIONS)) for n in (8, _BYTES)]
    small, large = peers.cluster.max(np.array(best)).tolist()
    ranks = peers.cluster.size
    nbytes = 2 * _BYTES * (ranks - 1) / ranks
    return Link(small / 2, max(nbytes, 1) / max(large - small, 1e-9))


def _seconds_of_sum(peers: Peers, nbytes: int) -> float:
    gpu = cast(GPU, peers.device)
    with use(gpu), gpu.stream("collective"):
        array = gpu.zeros(nbytes // 4, np.float32)
        gpu.synchronize_stream()
        started = time.perf_counter()
        peers.sum(array)
        gpu.synchronize_stream()
        return time.perf_counter() - started
