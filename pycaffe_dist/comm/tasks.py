"""Tasks of the communication thread: their steps, and the handles of those who wait for them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple


class Step(NamedTuple):
    """Messages under way: MPI requests and, for each, the rank at the other end.

    No ranks: the messages belong to a collective operation, which does not name the ranks it waits
    for.  ``nbytes`` is the size of the messages that this rank sends.  ``late`` returns the ranks
    whose flags in shared memory are still missing; none are when the step is complete.
    """

    requests: list[Any]
    ranks: tuple[int, ...] = ()
    nbytes: float = 0
    late: Callable[[], Sequence[int]] | None = None


Task = Generator[Step, None, Any]


class Handle:
    """The handle of a submitted task: wait for it, and get its result or its exception."""

    __slots__ = ("_error", "_event", "_result", "name")

    def __init__(self, name: str):
        self.name = name
        self._event = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether the task has ended, well or not."""
        return self._event.is_set()

    @property
    def exception(self) -> BaseException | None:
        """The exception that ended the task, if one did."""
        return self._error

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the end of the task; return its result or raise its exception.

        Raises TimeoutError after ``timeout`` seconds.
        """
        if not self._event.wait(timeout):
            raise TimeoutError(f"{self.name} has not ended after {timeout:g} s")
        if self._error is not None:
            raise self._error
        return self._result

    def _finish(self, result: Any = None, error: BaseException | None = None) -> None:
        self._result, self._error = result, error
        self._event.set()


_numbers = itertools.count()


class Job:
    """A task with its handle and its present step."""

    __slots__ = (
        "handle",
        "nbytes",
        "number",
        "order",
        "paced",
        "patient",
        "priority",
        "reported",
        "restarts",
        "sent",
        "since",
        "started",
        "step",
        "task",
    )

    def __init__(
        self,
        task: Task,
        handle: Handle,
        order: int | None = None,
        nbytes: int = 0,
        priority: float = 0,
        paced: bool = False,
        patient: bool = False,
        restarts: bool = False,
    ):
        self.task, self.handle, self.order, self.nbytes = task, handle, order, nbytes
        self.priority, self.paced, self.patient = priority, paced, patient
        self.restarts = restarts
        self.number = next(_numbers)
        self.step = Step([])
        self.started = self.since = 0.0
        self.sent = 0.0  # bytes, by this rank
        self.reported = False

    def late(self) -> Sequence[int]:
        """Return the ranks for whose flags in shared memory the step waits."""
        return self.step.late() if self.step.late else ()

    def __lt__(self, other: Job) -> bool:
        mine = self.priority, self.order or 0, self.number
        return mine < (other.priority, other.order or 0, other.number)
