"""Where a run's time goes: spans of time, and the profiler that collects them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Kind(Enum):
    """What a rank does, or waits for, during a span of time."""

    FORWARD = "forward"  # of a layer
    BACKWARD = "backward"
    UPDATE = "update"  # of a parameter
    REBUILD = "rebuild"  # what is left to do once a parameter's messages are there
    WAIT = "wait"  # for a parameter's messages
    EXCHANGE = "exchange"  # messages that are under way, in the communication thread


# Gets the kind, the name of the layer, parameter or exchange, and when it began and ended
# (time.perf_counter).
Record = Callable[[Kind, str, float, float], None]


class Profiler:
    """Passes every span of time on to any number of functions."""

    def __init__(self) -> None:
        self._records: list[Record] = []

    def add(self, record: Record) -> None:
        """Call ``record`` from now on."""
        self._records.append(record)

    def remove(self, record: Record) -> None:
        """Call ``record`` no more."""
        self._records.remove(record)

    @property
    def record(self) -> Record | None:
        """What calls all of them; None when there are none, so that nothing need be timed."""
        return self._record if self._records else None

    def _record(self, kind: Kind, name: str, started: float, ended: float) -> None:
        for record in self._records:
            record(kind, name, started, ended)
