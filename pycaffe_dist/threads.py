"""The host's threads: every kernel spreads its work over them with `parallel_for`."""

from __future__ import annotations

import _thread
import ctypes
import itertools
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pycaffe_dist.errors import DeviceError, UsageError

Swap = Callable[[int, int, int, int, int, int], None]

# More chunks than threads, so that a thread that loses its core for a while holds up little.
CHUNKS_PER_THREAD = 4
# How often a thread looks for news before it sleeps: some 50 to 100 µs.
SPINS = 2500
# Pauses between a worker's seeing a job and its asking for the interpreter lock, in which the
# caller gets into its own first chunk and lets go of the lock: some 4 µs.
HANDOVER = 150
# How often a worker looks for another chain of loops: some 150 to 300 µs, because there is Python
# between chains.
STAY = 10000
# The words of a chain's control block, and the places of three: does it run, shall workers leave,
# and after how many pauses does a thread that waits let others have its core?
CONTROL_WORDS, RUNNING, LEAVING, PAUSES = 32, 16, 24, 25
# About a millisecond; with more threads than cores, somebody waits for the core at once.
MOST_PAUSES = 25000


class Calls:
    """What a thread called in a pass, in order, and the scratch memory that it was lent."""

    def __init__(self) -> None:
        self.made: list[tuple[Callable[..., Any], tuple]] = []
        self.lent: list[Any] = []


class _ThreadState(threading.local):
    # In a dry run, what `parallel_for` calls instead of running kernels.
    note: Callable[[Callable[..., Any], tuple], None] | None = None
    # While a pass is noted, its calls.
    calls: Calls | None = None


_here = _ThreadState()


@contextmanager
def instead_of_running(note: Callable[[Callable[..., Any], tuple], None]) -> Iterator[None]:
    """Let `parallel_for`, when this thread calls it, call ``note(kernel, args)`` and do nothing."""
    before, _here.note = _here.note, note
    try:
        yield
    finally:
        _here.note = before


@contextmanager
def noting_calls() -> Iterator[Calls]:
    """Return a context that notes what this thread calls by `parallel_for` and `in_every_pass`."""
    _here.calls = calls = Calls()
    try:
        yield calls
    finally:
        _here.calls = None


def can_note_calls() -> bool:
    """Tell whether this thread runs kernels, and notes no calls already."""
    return _here.note is None and _here.calls is None


def in_every_pass(action: Callable[..., Any], *args: Any) -> None:
    """Call ``action(*args)``, and again whenever the calls of this pass are made again.

    For work between kernels that is not a loop of its own.
    """
    if _here.calls is None:
        action(*args)
    else:
        _note(_here.calls, action, args)


def note_lent(memory: Any) -> None:
    """Note that this pass uses scratch memory that others may use after it."""
    if _here.calls is not None:
        _here.calls.lent.append(memory)


def _note(calls: Calls, function: Callable[..., Any], args: tuple) -> None:
    """Note a call and make it; calls inside it are not noted."""
    calls.made.append((function, args))
    _here.calls = None
    try:
        function(*args)
    finally:
        _here.calls = calls


class _Job:
    """One loop that is being shared out: threads draw chunk numbers until none is left."""

    def __init__(self, number: int, kernel: Callable[..., Any], n: int, chunks: int, args: tuple):
        self.number, self.kernel, self.n, self.chunks, self.args = number, kernel, n, chunks, args
        self.draw = itertools.count().__next__  # atomic under the interpreter lock
        self.entered: list[_Worker] = []  # the workers that came before all chunks were drawn
        self.left: queue.SimpleQueue[_Worker] = queue.SimpleQueue()  # those that are done
        self.error: BaseException | None = None

    def work(self) -> None:
        n, chunks, kernel, args, draw = self.n, self.chunks, self.kernel, self.args, self.draw
        try:
            while (chunk := draw()) < chunks:
                kernel(n * chunk // chunks, n * (chunk + 1) // chunks, *args)
        except BaseException as error:  # carried over to the thread that waits for the loop
            self.error = error


class _Worker:
    """A thread that waits for jobs: awake for a moment after each one, then asleep on a lock.

    The lock alone would do.  But waking a thread takes tens of microseconds, as much as a small
    kernel, so each side first watches a number in machine code that holds no interpreter lock.
    """

    def __init__(self, number: int, swap: Swap):
        self._jobs: deque[_Job | None] = deque()  # never more than one
        self._go = _thread.allocate_lock()
        self._go.acquire()
        self._swap = swap
        # Has it been told to follow a chain of loops, and not returned since?
        self.serves = False
        # Numbers of the last job given out and finished, and a place to write to in vain; each in
        # a cache line of its own.
        self._numbers = (ctypes.c_int64 * 24)()
        self._given = ctypes.addressof(self._numbers)
        self._finished, self._nothing = self._given + 64, self._given + 128
        threading.Thread(target=self._run, name=f"pcaffe-kernel-{number}", daemon=True).start()

    def _run(self) -> None:
        last = 0
        while True:
            self._swap(self._finished, last, self._given, last + 1, SPINS, HANDOVER)
            self._go.acquire()
            job = self._jobs.pop()
            if job is None:
                return
            last = job.number
            job.entered.append(self)
            job.work()
            self.serves = False
            job.left.put(self)
            del job  # its arrays must not live until the next one

    def start(self, job: _Job | None, serves: bool = False) -> None:
        """Give the worker a job, instead of one that it has not woken up for yet; None ends it."""
        self.serves = serves
        try:
            self._jobs[0] = job
        except IndexError:
            self._jobs.append(job)
            self._go.release()
        if job is not None:
            self._numbers[0] = job.number

    def watch(self, job: _Job) -> None:
        """Wait for a moment, awake, for the end of the job."""
        self._swap(self._nothing, 0, self._finished, job.number, SPINS, 1)


def _serve(
    begin: int, end: int, serve: Callable[[int, int, int], None], control: Any, give_way: int
) -> None:
    serve(ctypes.addressof(control), STAY, give_way)
    # Somebody may have counted on this thread while it was about to leave.
    while control[RUNNING] and not control[LEAVING]:
        serve(ctypes.addressof(control), STAY, give_way)


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Pool:
    """The caller plus ``size - 1`` workers."""

    def __init__(self, size: int):
        self.size = size
        self.owner = threading.Lock()  # held by the one caller that is using the workers
        self.workers: list[_Worker] = []
        self._number = 0
        self._control = (ctypes.c_int64 * CONTROL_WORDS)()
        self._control[PAUSES] = MOST_PAUSES if size <= _available_cores() else 0

    def _hire(self) -> None:
        swap = _make_swap() if _make_swap else _sleep_at_once
        try:
            self.workers = [_Worker(i, swap) for i in range(1, self.size)]
        except RuntimeError as error:
            raise DeviceError(
                f"the system does not let this process have {self.size} threads ({error}): give a "
                "smaller number (--threads)"
            ) from error

    def run(self, kernel: Callable[..., Any], n: int, chunks: int, args: tuple) -> None:
        if not self.workers:
            self._hire()
        self._number += 1
        self._control[LEAVING] = 1
        job = _Job(self._number, kernel, n, chunks, args)
        for worker in self.workers[: chunks - 1]:
            worker.start(job)
        job.work()
        # All chunks are drawn now: a worker that comes later will find nothing to do, and may leave
        # before others.
        working = set(job.entered)
        for worker in tuple(working):
            worker.watch(job)
        while working:
            working.discard(job.left.get())
        if job.error is not None:
            raise job.error

    def lead(
        self, run: Callable[[int], None], serve: Callable[[int, int, int], None], give_way: int
    ) -> None:
        if not self.workers:
            self._hire()
        self._control[LEAVING] = 0
        for worker in self.workers:
            if not worker.serves:
                self._number += 1
                job = _Job(self._number, _serve, 1, 1, (serve, self._control, give_way))
                worker.start(job, serves=True)
        run(ctypes.addressof(self._control))

    def stop(self) -> None:
        with self.owner:
            self._control[LEAVING] = 1
            for worker in self.workers:
                worker.start(None)
            self.workers = []


_pool = _Pool(_available_cores())
_unwatched = (ctypes.c_int64 * CONTROL_WORDS)()
_make_swap: Callable[[], Swap] | None = None


def wait_awake(make_swap: Callable[[], Swap]) -> None:
    """Let threads, before they sleep, wait in the machine code that ``make_swap`` returns.

    The kernels give it; it is called when the first workers start.
    """
    global _make_swap
    _make_swap = make_swap


def _sleep_at_once(*args: int) -> None:
    """Wait as long as nobody has given machine code for it: not at all."""


def thread_count() -> int:
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
    if _here.note is not None:
        _here.note(kernel, args)
    elif _here.calls is not None:
        _note(_here.calls, spread, (kernel, n, args, grain))
    else:
        spread(kernel, n, args, grain)


def spread(kernel: Callable[..., Any], n: int, args: tuple, grain: int) -> None:
    """Do what `parallel_for` does, without being noted."""
    pool, chunks = _pool, chunks_of(n, grain)
    if chunks == 1 or not pool.owner.acquire(blocking=False):
        kernel(0, n, *args)
        return
    try:
        pool.run(kernel, n, chunks, args)
    finally:
        pool.owner.release()


def chunks_of(n: int, grain: int) -> int:
    """Return into how many chunks `parallel_for` cuts a loop."""
    if _pool.size == 1 or n < 2 * grain:
        return 1
    return min(n // grain, _pool.size * CHUNKS_PER_THREAD)


def lead(run: Callable[[int], None], serve: Callable[[int, int, int], None], give_way: int) -> None:
    """Call ``run(control)`` in this thread, and let the others help it.

    ``control`` is the address of a block that the other threads watch in ``serve(control, spins,
    give_way)``; see `kernels.jit.codegen.chains`.
    """
    pool = _pool
    if pool.size == 1 or not pool.owner.acquire(blocking=False):
        run(ctypes.addressof(_unwatched))
        return
    try:
        pool.lead(run, serve, give_way)
    finally:
        pool.owner.release()


def _forget_workers() -> None:
    # Threads do not survive a fork: the child starts its own when it needs them.
    global _pool
    _pool = _Pool(_pool.size)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)
