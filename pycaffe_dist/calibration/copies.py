"""The rate at which this rank copies memory, measured when the run starts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster

# Larger than a core's own caches, as what the ranks of a host hand over to each other is.
_BYTES = 4 << 20
_COPIED_BYTES = 2 * _BYTES  # read and written
_REPETITIONS = 4


def copy_rate(cluster: Cluster) -> float:
    """Return the bytes per second that the slowest rank reads and writes while all ranks do.

    Measured at the first call, in some 10 ms.
    """
    if cluster.measured.copy_rate is None:
        cluster.barrier()
        slowest = float(cluster.max(np.array(_measure_seconds())))
        cluster.measured.copy_rate = _COPIED_BYTES / slowest
    return cluster.measured.copy_rate


def _measure_seconds() -> float:
    """Return the time of a copy that moves ``_COPIED_BYTES``, in one thread.

    It is the best of a few copies, after a first one that touches the memory.
    """
    source, target = np.zeros(_BYTES, np.uint8), np.empty(_BYTES, np.uint8)
    seconds = []
    for _ in range(1 + _REPETITIONS):
        started = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])
