"""The one thread of a rank that talks to MPI: it runs many exchanges at once and never blocks.

A task is a generator that starts messages and yields them as a :class:`Step`; it is resumed once
they have all arrived.  The thread tests the steps of all live tasks in turn, oldest first.  When
none has made progress it naps; without tasks it sleeps.  So it leaves the cores to the kernels; a
blocking or spinning MPI call would take one of them.
"""

from __future__ import annotations

import heapq
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pycaffe_dist.comm.stall_inspector import LOOK_SECONDS, StallInspector
from pycaffe_dist.comm.tasks import Handle, Job, Task
from pycaffe_dist.comm.token_bucket import Pace
from pycaffe_dist.errors import ClusterError
from pycaffe_dist.profiling import Kind, Record

# Several exchanges at a time hide each other's latency and keep both directions of a link busy
# (at 1 Gbit/s and 64 MB: 8 MiB at a time take 730 ms, 32 MiB 600 ms); more would only take memory.
MOST_LIVE = 3
MOST_LIVE_BYTES = 32 << 20
# A small task that is more urgent than all running tasks starts at once.
URGENT_BYTES = 256 << 10
# A nap takes `NAP_SHARE` of the time without progress, within these bounds (seconds).
SHORTEST_NAP = 50e-6
LONGEST_NAP = 1e-3
NAP_SHARE = 1 / 50


class CommunicationThread:
    """Runs tasks in a thread of its own.

    ``test_all`` tells whether a list of requests has completed (``MPI.Request.Testall``).  When a
    step takes longer than ``stall_seconds``, standard error says which ranks it waits for; ``who``
    names this rank there.  After ``shutdown_seconds``, waiting for the task raises ClusterError.
    ``record`` gets, in the thread, a span for every task with an order that has ended.  ``pace``
    limits the messages of tasks that have an order or are ``paced``.

    ``on_error`` gets every exception of MPI.  It may return another one, after which no message can
    be trusted: all tasks end with it, and every new one, until :meth:`restart`.
    """

    def __init__(
        self,
        test_all: Callable[[Sequence[Any]], bool],
        stall_seconds: float = 120.0,
        who: str = "this rank",
        pace: Pace | None = None,
        shutdown_seconds: float = math.inf,
    ):
        self.who = who
        self.stall_seconds = stall_seconds
        self._shutdown_seconds = shutdown_seconds
        self._pace = pace or Pace()
        self._test_all = test_all
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._live: list[Job] = []
        self._waiting: list[Job] = []  # a heap: the most urgent one is first
        self._held: list[Job] = []  # a heap of tasks without an order that the pace holds back
        self._watches: dict[str, Callable[[float], bool]] = {}
        self._ended: list[int] = []  # a heap of orders that ended before a lower one
        self._frontier = 0  # the lowest order that has not ended
        self._ordered = 0  # how many tasks with an order are live
        self._busy = 0.0  # the seconds with at least one, up to the last moment without
        self._busy_since = 0.0
        self.record: Record | None = None
        self.inquiry: StallInspector | None = None
        self.place = ""  # the state of the run, in words for other ranks
        self.on_error: Callable[[Exception], BaseException | None] = lambda error: None
        self._broken: BaseException | None = None
        self._abandoned: list[Job] = []  # whose buffers MPI may still use
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="pcaffe-mpi", daemon=True)
        self._thread.start()

    def submit(
        self,
        task: Task,
        name: str,
        *,
        order: int | None = None,
        nbytes: int = 0,
        priority: float = 0,
        paced: bool = False,
        patient: bool = False,
    ) -> Handle:
        """Hand over a task and return its handle; ``name`` is for messages.

        Without ``order`` the task starts at once.  Of tasks with an order only a few run at a time,
        depending on their ``nbytes``; the waiting one with the lowest ``priority``, then the lowest
        order, starts first.  The lowest order that has not ended is always started, so that ranks
        that submit in different orders, or with different priorities, cannot wait for each other
        for ever.  Orders count up from 0, without gaps, since the last :meth:`restart_order`.

        Tasks with an order, and those that are ``paced``, are held back while the pace is exceeded.
        A ``patient`` task may wait for others as long as it likes.
        """
        if self._closing:
            raise ClusterError(f"{name}: the communication thread has ended")
        handle = Handle(name)
        paced = paced or order is not None
        self._inbox.put(Job(task, handle, order, nbytes, priority, paced, patient))
        return handle

    def watch(self, name: str, look: Callable[[float], bool] | None) -> Handle:
        """Call ``look`` again and again in the thread, with the time (``time.monotonic``).

        It looks for unexpected messages, returns whether it found any, and does not wait.  It
        replaces an earlier watch of that name; None ends it.  An exception in it ends the thread,
        and is raised in every waiting caller.
        """

        def change() -> None:
            if look is None:
                self._watches.pop(name, None)
            else:
                self._watches[name] = look

        return self.call(change, f"watch {name}")

    def end_watches(self) -> None:
        """End all watches; to be called in the thread."""
        self._watches.clear()
        self.inquiry = None

    @property
    def runs_only_one(self) -> bool:
        """Whether there is only one task; to be called in the thread, by a task."""
        return len(self._live) == 1 and not (self._waiting or self._held or not self._inbox.empty())

    def restart_order(self) -> None:
        """Let orders count from 0 again; no task with an order may be running."""

        def restart() -> None:
            self._frontier = 0
            self._ended.clear()

        self.call(restart, "restart_order")

    def restart(self, function: Callable[[], Any], name: str) -> Any:
        """Run a function in the thread after all tasks have ended with an error; return its result.

        From then on there may be tasks again.
        """

        def task() -> Task:
            self._broken = None
            return function()
            yield

        handle = Handle(name)
        self._inbox.put(Job(task(), handle, restarts=True))
        return handle.wait()

    def exchange_seconds(self) -> float:
        """Return the seconds in which at least one task with an order was running."""
        busy, since = self._busy, self._busy_since
        return busy + (time.perf_counter() - since if self._ordered else 0.0)

    def call(self, function: Callable[[], Any], name: str) -> Handle:
        """Run a short function in the communication thread."""

        def task() -> Task:
            return function()
            yield

        return self.submit(task(), name)

    def close(self, timeout: float | None = None) -> None:
        """End the thread after its present tasks; return after ``timeout`` seconds at most."""
        self._closing = True
        self._inbox.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # raised in every caller that waits, now or later
            for job in self._live + self._waiting + self._held:
                job.handle._finish(error=error)
            while (late := self._inbox.get()) is not None:
                late.handle._finish(error=error)

    def _loop(self) -> None:
        moved_at = time.monotonic()
        while True:
            moved = self._accept_all()
            if not self._live and not self._waiting and not self._held:
                if self._closing and self._inbox.empty():
                    return
                moved |= self._sleep()
            moved |= self._start_waiting()
            now = time.monotonic()
            moved |= self._look(now)
            for job in tuple(self._live):
                if self._broken is None:
                    moved |= self._advance(job, now)
            if moved:
                moved_at = now
            elif self._live or self._waiting or self._held:
                time.sleep(min(max((now - moved_at) * NAP_SHARE, SHORTEST_NAP), LONGEST_NAP))

    def _look(self, now: float) -> bool:
        """Look for unexpected messages; tell whether a watch found one."""
        found = False
        try:
            for look in tuple(self._watches.values()):
                found |= look(now)
            if self.inquiry is not None:
                self.inquiry.look(now)
        except Exception as error:
            if not self._breaks(error):
                raise
        return found

    def _breaks(self, error: Exception) -> bool:
        """Tell whether all tasks have ended because of an exception."""
        broken = self._broken or self.on_error(error)
        if broken is None:
            return False
        self._broken = broken
        for job in self._live + self._waiting + self._held:
            job.handle._finish(error=broken)
            self._abandoned.append(job)
        self._live, self._waiting, self._held = [], [], []
        self._ordered = 0
        self.end_watches()
        return True

    def _sleep(self) -> bool:
        """Wait for a new task, or until the next look for messages; tell whether one came."""
        try:
            longest = LOOK_SECONDS if self.inquiry else None
            self._accept(self._inbox.get(timeout=LONGEST_NAP if self._watches else longest))
        except queue.Empty:
            return False
        return True

    def _accept_all(self) -> bool:
        found = False
        while not self._inbox.empty():
            self._accept(self._inbox.get())
            found = True
        return found

    def _accept(self, job: Job | None) -> None:
        if job is None:
            self._closing = True
        elif self._broken is not None and not job.restarts:
            job.handle._finish(error=self._broken)
        elif job.order is not None:
            heapq.heappush(self._waiting, job)
        elif job.paced and self._pace.is_limited:
            heapq.heappush(self._held, job)
        else:
            self._start(job)

    def _start_waiting(self) -> bool:
        """Start the tasks whose turn has come."""
        found = False
        while self._held and self._may_send():
            self._start(heapq.heappop(self._held))
            found = True
        while self._waiting and self._has_room(self._waiting[0]) and self._may_send():
            self._start(heapq.heappop(self._waiting))
            found = True
        return (self._may_send() and self._start_frontier()) or found

    def _may_send(self) -> bool:
        return self._pace.allows(time.monotonic())

    def _start_frontier(self) -> bool:
        """Start the task of the lowest order that has not ended, even if many others run."""
        for number, job in enumerate(self._waiting):
            if job.order == self._frontier:
                self._waiting[number] = self._waiting[-1]
                self._waiting.pop()
                heapq.heapify(self._waiting)
                self._start(job)
                return True
        return False

    def _has_room(self, job: Job) -> bool:
        ordered = [other for other in self._live if other.order is not None]
        return (
            len(ordered) < MOST_LIVE
            or job.nbytes + sum(other.nbytes for other in ordered) <= MOST_LIVE_BYTES
            or (job.nbytes <= URGENT_BYTES and all(job < other for other in ordered))
        )

    def _start(self, job: Job) -> None:
        self._live.append(job)
        if job.order is not None:
            job.started = time.perf_counter()
            if not self._ordered:
                self._busy_since = job.started
            self._ordered += 1
        self._resume(job, time.monotonic())

    def _advance(self, job: Job, now: float) -> bool:
        """Resume a task whose step is complete; tell whether it was."""
        try:
            complete = self._test_all(job.step.requests) and not job.late()
        except Exception as error:
            if not self._breaks(error):
                self._end(job, error=error)
            return True
        if complete:
            if job.paced and not self._may_send():
                return False
            self._resume(job, now)
        elif not job.patient:
            self._inspect(job, now)
        return complete

    def _inspect(self, job: Job, now: float) -> None:
        """Report a task that has waited for long; fail it after too long a wait."""
        waited = now - job.since
        if waited > self.stall_seconds and not self._has_reported():
            job.reported = True
            self._report(job, now)
        if waited > self._shutdown_seconds and not job.handle.done:
            # The task stays live: MPI may still write to its buffers.
            job.handle._finish(
                error=ClusterError(
                    f"{job.handle.name} has waited {waited:.0f} s for {_named(self._missing(job))}:"
                    " the run ends, as --stall_shutdown asks for"
                )
            )

    def _resume(self, job: Job, now: float) -> None:
        try:
            job.step = next(job.task)
            job.since, job.reported = now, False
            job.sent += job.step.nbytes
            if job.paced:
                self._pace.take(job.step.nbytes)
        except StopIteration as end:
            self._end(job, result=end.value)
        except Exception as error:
            if not self._breaks(error):
                self._end(job, error=error)

    def _end(self, job: Job, result: Any = None, error: BaseException | None = None) -> None:
        self._live.remove(job)
        if job.order is not None:
            heapq.heappush(self._ended, job.order)
            while self._ended and self._ended[0] == self._frontier:
                heapq.heappop(self._ended)
                self._frontier += 1
            self._note_end(job)
        job.handle._finish(result, error)

    def _note_end(self, job: Job) -> None:
        ended = time.perf_counter()
        self._ordered -= 1
        if not self._ordered:
            self._busy += ended - self._busy_since
        if self.record is not None:
            self.record((Kind.EXCHANGE, job.handle.name, job.started, ended, job.sent))

    def status(self) -> str:
        """Return what this rank is doing, as far as this thread knows; call it in the thread."""
        names = [job.handle.name for job in self._live if not job.patient]
        doing = f"waits in {', '.join(names)}" if names else "has nothing under way and computes"
        return f"{doing}, {self.place}" if self.place else doing

    def _has_reported(self) -> bool:
        """Whether a stuck task has been reported, for which the others wait, too."""
        return any(job.reported for job in self._live)

    def _report(self, job: Job, now: float) -> None:
        """Report once the ranks that a task is waiting for."""
        missing = self._missing(job)
        if self.inquiry is not None:
            self.inquiry.ask(missing, now)
        print(
            f"pcaffe: {self.who}: {job.handle.name} has waited {now - job.since:.0f} s for "
            f"{_named(missing)}",
            file=sys.stderr,
            flush=True,
        )

    def _missing(self, job: Job) -> list[int]:
        """Return the ranks that a task is waiting for; none if it does not know."""
        requests = zip(job.step.requests, job.step.ranks)
        incomplete = {rank for request, rank in requests if not request.Get_status()}
        return sorted(incomplete.union(job.late()))


def _named(ranks: Sequence[int]) -> str:
    if not ranks:
        return "other ranks; a collective operation does not tell which"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
