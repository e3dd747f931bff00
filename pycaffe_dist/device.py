"""The CPU threads of one rank: every kernel spreads its work over them with `parallel_for`."""

from __future__ import annotations

import _thread
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any

from pycaffe_dist.errors import UsageError

# More chunks than threads, so that a thread that loses its core for a while holds up little.
CHUNKS_PER_THREAD = 4


class _Job:
    """One loop that is being shared out: threads draw chunk numbers until none is left."""

    def __init__(self, kernel: Callable[..., Any], n: int, chunks: int, args: tuple):
        self.kernel, self.n, self.chunks, self.args = kernel, n, chunks, args
        self.draw = itertools.count().__next__  # atomic under the interpreter lock
        self.error: BaseException | None = None

    def work(self) -> None:
        n, chunks, kernel, args, draw = self.n, self.chunks, self.kernel, self.args, self.draw
        try:
            while (chunk := draw()) < chunks:
                kernel(n * chunk // chunks, n * (chunk + 1) // chunks, *args)
        except BaseException as error:  # carried over to the thread that waits for the loop
            self.error = error
            self.chunks = 0


class _Worker:
    """A thread that sleeps on a lock between loops."""

    def __init__(self, number: int):
        self.job: _Job | None = None
        self.go, self.done = _thread.allocate_lock(), _thread.allocate_lock()
        self.go.acquire()
        self.done.acquire()
        threading.Thread(target=self._run, name=f"pcaffe-kernel-{number}", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.go.acquire()
            if self.job is None:
                return
            self.job.work()
            self.job = None
            self.done.release()

    def stop(self) -> None:
        self.go.release()


class _Pool:
    """The caller plus ``size - 1`` workers."""

    def __init__(self, size: int):
        self.size = size
        self.owner = threading.Lock()  # held by the one caller that is using the workers
        self.workers: list[_Worker] = []

    def run(self, kernel: Callable[..., Any], n: int, chunks: int, args: tuple) -> None:
        if not self.workers:
            self.workers = [_Worker(i) for i in range(1, self.size)]
        job = _Job(kernel, n, chunks, args)
        helpers = self.workers[: chunks - 1]
        for worker in helpers:
            worker.job = job
            worker.go.release()
        job.work()
        for worker in helpers:
            worker.done.acquire()
        if job.error is not None:
            raise job.error

    def stop(self) -> None:
        with self.owner:
            for worker in self.workers:
                worker.stop()
            self.workers = []


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_pool = _Pool(_available_cores())


def threads() -> int:
    """Return how many threads a kernel may use."""
    return _pool.size


def set_threads(n: int) -> None:
    """Use ``n`` threads from now on; raises `UsageError` unless ``n`` is at least 1."""
    global _pool
    if n < 1:
        raise UsageError(f"the number of threads must be at least 1, found {n}")
    if n != _pool.size:
        old, _pool = _pool, _Pool(n)
        old.stop()


def parallel_for(kernel: Callable[..., Any], n: int, *args: Any, grain: int = 1) -> None:
    """Run ``kernel(begin, end, *args)`` over [0, n) in chunks on all threads; return when done.

    ``kernel`` must release the interpreter lock (a `jit` function) and write disjoint outputs for
    different indices; the chunk limits depend on the number of threads, so its results must not.
    A chunk has at least ``grain`` indices: choose it so that a chunk is worth some 20 µs.  With one
    thread, or while another thread's loop has the workers, the whole loop runs in the caller.  An
    exception in a chunk surfaces here.
    """
    if n <= 0:
        return
    pool = _pool
    if pool.size == 1 or n < 2 * grain or not pool.owner.acquire(blocking=False):
        kernel(0, n, *args)
        return
    try:
        pool.run(kernel, n, min(n // grain, pool.size * CHUNKS_PER_THREAD), args)
    finally:
        pool.owner.release()


def _forget_workers() -> None:
    # Threads do not survive a fork: the child starts its own when it needs them.
    global _pool
    _pool = _Pool(_pool.size)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)
