"""The profiler: spans of time in a run, and the functions that collect them."""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Kind(Enum):
    """A rank's activity, or the reason for its wait, during a span of time."""

    FORWARD = "forward"  # of a layer
    BACKWARD = "backward"
    UPDATE = "update"  # of a parameter
    REBUILD = "rebuild"  # the work after a parameter's messages have arrived
    WAIT = "wait"  # for a parameter's messages
    EXCHANGE = "exchange"  # messages under way, in the communication thread
    # These contain spans of the kinds above, or lie in them.
    ITERATION = "iteration"  # with its test and snapshot
    TEST = "test"
    SNAPSHOT = "snapshot"  # as long as training waits for it
    DATA = "data"  # waiting for a batch, in the forward of its layer

    # Members are single objects.  Enum's own hash, a function in Python, takes as long as the rest
    # of a record.
    __hash__ = object.__hash__


MARKS = (Kind.ITERATION, Kind.TEST, Kind.SNAPSHOT, Kind.DATA)


class Record(Protocol):
    """A function that gets every span of time."""

    def __call__(
        self, kind: Kind, name: str, started: float, ended: float, nbytes: float = 0, /
    ) -> None:
        """Note a span of a layer, parameter or exchange; times are ``time.perf_counter``'s.

        ``nbytes`` is the size of the messages that this rank has sent in an exchange.
        """


class Profiler:
    """Passes every span of time on to any number of functions."""

    def __init__(self) -> None:
        self._records: list[Record] = []

    def add(self, record: Record) -> None:
        """Call ``record`` from now on."""
        self._records.append(record)

    def remove(self, record: Record) -> None:
        """Stop calling ``record``."""
        self._records.remove(record)

    @property
    def record(self) -> Record | None:
        """The function that calls all others; None without any, so that nothing is timed."""
        if len(self._records) == 1:
            return self._records[0]
        return self._record if self._records else None

    def _record(
        self, kind: Kind, name: str, started: float, ended: float, nbytes: float = 0, /
    ) -> None:
        for record in self._records:
            record(kind, name, started, ended, nbytes)
