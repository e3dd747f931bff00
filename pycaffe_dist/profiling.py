"""The profiler: spans of time in a run, and the functions that get them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

# A kind, a name, start and end in seconds of ``time.perf_counter``, and the bytes that this rank
# has sent in an exchange.  A plain tuple of text and numbers costs the garbage collector nothing.
Span = tuple[str, str, float, float, float]
Record = Callable[[Span], None]
Follower = Callable[[Sequence[Span]], None]

# Spans that nobody has taken yet, which only loops without updates lose.
_MOST_WAITING = 100_000


class Kind:
    """A rank's activity, or the reason for its wait, during a span of time."""

    FORWARD = "forward"  # of a layer
    BACKWARD = "backward"
    UPDATE = "update"  # of a parameter, or of all
    REBUILD = "rebuild"  # the work after a parameter's messages have arrived
    WAIT = "wait"  # for a parameter's messages
    EXCHANGE = "exchange"  # messages under way, in the communication thread
    # These contain spans of the kinds above, or lie in them.
    ITERATION = "iteration"  # with its test and snapshot
    TEST = "test"
    SNAPSHOT = "snapshot"  # as long as training waits for it
    DATA = "data"  # waiting for a batch, in the forward of its layer


MARKS = (Kind.ITERATION, Kind.TEST, Kind.SNAPSHOT, Kind.DATA)


class Profiler:
    """Keeps spans of time until `hand_over`, which passes them on to any number of functions.

    ``record`` keeps a span, in any thread; it is None if nobody follows, so that nothing is timed.
    That is an append: between layers, whose data fill the caches, more Python would take long.
    """

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=_MOST_WAITING)
        self._followers: list[Follower] = []
        self.record: Record | None = None

    def add(self, follower: Follower) -> None:
        """Call ``follower`` with the spans from now on."""
        self.hand_over()
        self._followers.append(follower)
        self.record = self._spans.append

    def remove(self, follower: Follower) -> None:
        """Call ``follower`` with the spans so far, and then no more."""
        self.hand_over()
        self._followers.remove(follower)
        if not self._followers:
            self.record = None

    def hand_over(self, least: int = 1) -> None:
        """Pass on the spans since the last time, unless there are less than ``least``."""
        if len(self._spans) < least:
            return
        # Other threads may append meanwhile.
        spans = [self._spans.popleft() for _ in range(len(self._spans))]
        for follower in self._followers:
            follower(spans)
