"""Limits a rank's sending to a number of bytes per second."""

from __future__ import annotations

import math

# The burst that is allowed after a pause, in seconds of the permitted rate.
BURST_SECONDS = 0.02


class Pace:
    """A bucket that fills with ``bytes_per_second`` and that messages empty.

    A message may start while the bucket is not empty.  It may take more than the bucket holds; then
    the next one waits for longer.  So large messages pass, too, and the mean rate holds.  Times are
    from ``time.monotonic``.
    """

    def __init__(self, bytes_per_second: float = math.inf):
        self.bytes_per_second = bytes_per_second
        self._most = bytes_per_second * BURST_SECONDS
        self._level = self._most
        self._at: float | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit at all."""
        return self.bytes_per_second < math.inf

    def allows(self, now: float) -> bool:
        """Tell whether a message may start now."""
        if not self.is_limited:
            return True
        if self._at is not None:
            self._level = min(self._most, self._level + (now - self._at) * self.bytes_per_second)
        self._at = now
        return self._level > 0

    def take(self, nbytes: float) -> None:
        """Note that a message of ``nbytes`` has started."""
        if self.is_limited:
            self._level -= nbytes
