"""Signals become actions that the solver asks for between two iterations, as in Caffe."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

from pycaffe_dist.config import Action

_LIKE_SIGTERM = {signal.SIGUSR1, signal.SIGUSR2}


class SignalActions:
    """While entered, collects signals; calling it returns the action they ask for, once.

    SIGINT and SIGHUP do what they were given.  SIGUSR1 and SIGUSR2 mean the same as these two,
    because Open MPI's mpirun passes only them on to its ranks.  SIGTERM, and SIGUSR1 and SIGUSR2
    together, write a snapshot and stop.  After a SIGINT that stops, a second one ends the process
    at once.  Enter it in the main thread.
    """

    def __init__(self, sigint: Action = Action.STOP, sighup: Action = Action.SNAPSHOT):
        self._effects = {
            signal.SIGTERM: Action.SNAPSHOT_AND_STOP,
            signal.SIGHUP: sighup,
            signal.SIGUSR2: sighup,
            signal.SIGINT: sigint,
            signal.SIGUSR1: sigint,
        }
        self._pending: set[signal.Signals] = set()
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
        """Return one pending action, NONE without; as in Caffe, SIGHUP's goes before SIGINT's."""
        if self._pending >= _LIKE_SIGTERM:
            self._pending -= _LIKE_SIGTERM
            return Action.SNAPSHOT_AND_STOP
        for number, action in self._effects.items():
            if number in self._pending:
                self._pending.discard(number)
                return action
        return Action.NONE

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._pending.add(signal.Signals(number))
        if number == signal.SIGINT and self._effects[signal.SIGINT] is Action.STOP:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
