"""The rate at which this rank multiplies matrices, measured when the run starts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster

# The factors of 64 samples for weights of 1024×1024, which are 4 MB: as in a real net, they do not
# stay in a core's own caches.
SAMPLES, SIDE = 64, 1024
FLOPS = 2 * SAMPLES * SIDE * SIDE
REPETITIONS = 4


def product_rate(cluster: Cluster) -> float:
    """Return the slowest rank's FLOP/s in a matrix product while all ranks compute.

    Measured at the first call, in some 10 ms.
    """
    if cluster.measured.product_rate is None:
        cluster.barrier()
        slowest = float(cluster.max(np.array(_measure_seconds())))
        cluster.measured.product_rate = FLOPS / slowest
    return cluster.measured.product_rate


def multiply_until(is_over: Callable[[], bool]) -> float:
    """Repeat a product until something is over; return its median time."""
    from pycaffe_dist.kernels.gemm import gemm

    factor = np.ones((SAMPLES, SIDE), np.float32)
    product = np.empty((SIDE, SIDE), np.float32)
    seconds: list[float] = []
    while not seconds or not is_over():
        started = time.perf_counter()
        gemm(factor, factor, product, trans_a=True)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _measure_seconds() -> float:
    """Return the time of a product of ``FLOPS`` operations on all of the rank's threads.

    It is the best of a few products, after a first one that may compile the kernel.
    """
    from pycaffe_dist.kernels.gemm import gemm

    factor = np.ones((SAMPLES, SIDE), np.float32)
    product = np.empty((SIDE, SIDE), np.float32)
    seconds = []
    for _ in range(1 + REPETITIONS):
        started = time.perf_counter()
        gemm(factor, factor, product, trans_a=True)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])
