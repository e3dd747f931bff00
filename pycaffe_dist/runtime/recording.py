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
