"""Work of a net that is always the same: its kernels run again without the layers' Python."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pycaffe_dist import threads
from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.jit import workspace
from pycaffe_dist.threads import Calls

# Passes that differ from the one before them, after which calls are no longer noted.
MOST_ATTEMPTS = 6
_PLAIN = (bool, int, float, str, type(None), np.generic)


class Repeated:
    """Runs ``work``, which reads and writes ``blobs``.

    After two passes that made the same calls, with the same arrays and numbers, `run` makes these
    calls instead, until a blob has other memory.  So ``work`` must do nothing else: see
    `Layer.repeats_calls`.
    """

    def __init__(self, work: Callable[[], Any], blobs: Sequence[Blob]):
        self._work, self._blobs = work, tuple(blobs)
        self.forget()

    def forget(self) -> None:
        """Begin anew: the work has changed."""
        self._state: list[Any] = []
        self._calls: Calls | None = None
        self._functions: list[Callable[[], Any]] = []
        self._is_settled = False
        self._attempts = 0

    def run(self) -> None:
        """Do the work."""
        state = self._now()
        if self._is_settled and state == self._state and self._make_calls():
            return
        if self._attempts == MOST_ATTEMPTS or not threads.can_note_calls():
            self._work()
            return
        # The calls of the last pass keep their arrays, so that new ones have other memory.
        before = self._calls if state == self._state else None
        self._calls, self._functions, self._is_settled = None, [], False
        with threads.noting_calls() as calls:
            self._work()
        same = before is not None and _are_the_same(before, calls)
        self._is_settled, self._attempts = same, 0 if same else self._attempts + 1
        if self._attempts == MOST_ATTEMPTS:
            return
        # Loads Numba.
        from pycaffe_dist.kernels.chains import chained

        # The first pass allocates.
        self._calls, self._state = calls, self._now()
        self._functions = chained(calls.made) if same else []
        calls.lent = list({id(block): block for block in calls.lent}.values())

    def _now(self) -> list[Any]:
        # Plans have scratch memory of each calling thread, and units of work by their number.
        memory = [blob.memory for blob in self._blobs]
        return [threading.get_ident(), threads.thread_count(), *memory]

    def _make_calls(self) -> bool:
        """Make the calls; return False if scratch memory is in use elsewhere."""
        calls = self._calls
        assert calls is not None
        if calls.lent and not workspace.shared.claim(calls.lent):
            return False
        try:
            for function in self._functions:
                function()
        finally:
            if calls.lent:
                workspace.shared.give_back(calls.lent)
        return True


def _are_the_same(one: Calls, other: Calls) -> bool:
    return len(one.made) == len(other.made) and all(map(_is_same, one.made, other.made))


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two arguments are equal numbers, or arrays in the same memory."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, np.ndarray):
        return _layout(one) == _layout(other)
    return isinstance(one, _PLAIN) and bool(one == other)


def _layout(array: np.ndarray) -> tuple[Any, ...]:
    place = array.ctypes.data if array.size else 0
    return place, array.shape, array.strides, array.dtype
