"""Spans of time that parts of a run tell whoever wants to know where its time goes."""

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


class Listeners:
    """Those who are told."""

    def __init__(self) -> None:
        self._records: list[Record] = []

    def add(self, record: Record) -> None:
        """Tell ``record`` from now on."""
        self._records.append(record)

    def remove(self, record: Record) -> None:
        """Tell ``record`` no more."""
        self._records.remove(record)

    @property
    def tell(self) -> Record | None:
        """What tells all of them; None when there are none, so that nothing need be timed."""
        return self._tell if self._records else None

    def _tell(self, kind: Kind, name: str, started: float, ended: float) -> None:
        for record in self._records:
            record(kind, name, started, ended)
