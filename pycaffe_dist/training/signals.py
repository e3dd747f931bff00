"""Turns signals into actions for the solver between two iterations, as in Caffe."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any

from pycaffe_dist.config import Action

_LIKE_SIGTERM = {signal.SIGUSR1, signal.SIGUSR2}
# Seconds that mpirun may need to pass on both signals; an iteration may lie between them.
APART_SECONDS = 0.2


class SignalActions:
    """Collects signals while entered; a call returns the wanted action, once.

    SIGINT and SIGHUP have the given actions.  SIGUSR1 and SIGUSR2 mean the same, because Open MPI's
    mpirun passes only these on to its ranks.  SIGTERM, or SIGUSR1 and SIGUSR2 together, write a
    snapshot and stop; therefore one of the two alone counts only after ``apart`` seconds.  After a
    SIGINT that stops, a second one ends the process at once.  Enter it in the main thread.
    """

    def __init__(
        self,
        sigint: Action = Action.STOP,
        sighup: Action = Action.SNAPSHOT,
        apart: float = APART_SECONDS,
    ):
        self._effects = {
            signal.SIGTERM: Action.SNAPSHOT_AND_STOP,
            signal.SIGHUP: sighup,
            signal.SIGUSR2: sighup,
            signal.SIGINT: sigint,
            signal.SIGUSR1: sigint,
        }
        self._apart = apart
        self._pending: dict[signal.Signals, float] = {}  # when it first came
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalActions:
        for number in self._effects:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def __call__(self) -> Action:
        """Return one pending action, or NONE; as in Caffe, SIGHUP comes before SIGINT."""
        if self._pending.keys() >= _LIKE_SIGTERM:
            for number in _LIKE_SIGTERM:
                del self._pending[number]
            return Action.SNAPSHOT_AND_STOP
        for number, action in self._effects.items():
            if number in self._pending and not self._may_have_a_partner(number):
                del self._pending[number]
                return action
        return Action.NONE

    def _may_have_a_partner(self, number: signal.Signals) -> bool:
        """Tell whether a signal may be the first of a pair."""
        young = time.monotonic() - self._pending[number] < self._apart
        return number in _LIKE_SIGTERM and young

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._pending.setdefault(signal.Signals(number), time.monotonic())
        if number == signal.SIGINT and self._effects[signal.SIGINT] is Action.STOP:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
