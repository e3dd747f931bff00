"""Measures this machine's peaks: multiply-adds and memory traffic per second."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import numpy as np

from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import host_target
from pycaffe_dist.kernels.jit.gemm.kernels import FlatKernel

COPIED_BYTES = 1 << 26


def multiply_add_peak(threads: int, seconds: float, clock: Callable[[], float]) -> float:
    """Return the flop/s of a number of threads together, from products in their caches."""
    unit = host_target()
    rows, vectors, depth = unit.tile_rows(2), 2, 1 << 14
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 11)(
        address_of(FlatKernel(rows, vectors, False), unit)
    )

    def product() -> Callable[[], object]:
        arrays = [np.ones(count, np.float32) for count in (depth * rows, 64, rows, rows, rows * 64)]
        a, b, bias, slope, y = (array.ctypes.data for array in arrays)

        def several() -> list[np.ndarray]:
            for _ in range(10):
                run(a, b, 0, depth, bias, slope, y, 256, rows, 0, unit.lanes)
            return arrays

        return several

    best = _best(threads, seconds, product, clock)
    return 10 * 2.0 * depth * rows * vectors * unit.lanes * threads / best


def copy_peak(threads: int, seconds: float) -> float:
    """Return the bytes per second that a number of threads read and write while copying arrays."""

    def copy() -> Callable[[], object]:
        source, target = np.ones(COPIED_BYTES, np.uint8), np.ones(COPIED_BYTES, np.uint8)
        return lambda: np.copyto(target, source)

    return 2.0 * COPIED_BYTES * threads / _best(threads, seconds, copy, time.perf_counter)


def _best(
    threads: int,
    seconds: float,
    make: Callable[[], Callable[[], object]],
    clock: Callable[[], float],
) -> float:
    """Return the least time of one run in the slowest thread, all running at the same time."""
    best = [np.inf] * threads
    ready = threading.Barrier(threads)

    def work(number: int) -> None:
        run = make()
        run()
        ready.wait()
        stop = time.perf_counter() + seconds
        while time.perf_counter() < stop:
            start = clock()
            run()
            best[number] = min(best[number], clock() - start)

    others = [threading.Thread(target=work, args=(number,)) for number in range(1, threads)]
    for thread in others:
        thread.start()
    work(0)
    for thread in others:
        thread.join()
    return max(best)
