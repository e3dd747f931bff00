"""Writes during training: a consistent copy of the arrays, and a thread that writes it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from pycaffe_dist.errors import PcaffeError
from pycaffe_dist.threads import parallel_for

_ELEMENTS_PER_CHUNK = 1 << 18


class Copies:
    """Copies of arrays, in memory that is reused.

    Allocating new memory would take longer than copying.
    """

    def __init__(self) -> None:
        self._kept: list[np.ndarray] = []
        self._taken: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}

    def restart(self) -> None:
        """Discard the copies made so far and reuse their memory."""
        self._taken.clear()

    def copy(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of a contiguous array; a second call returns the same copy."""
        place = array.ctypes.data, array.shape
        if place in self._taken:
            return self._taken[place]
        number = len(self._taken)
        if number == len(self._kept):
            self._kept.append(np.empty_like(array))
        elif self._kept[number].shape != array.shape or self._kept[number].dtype != array.dtype:
            self._kept[number] = np.empty_like(array)
        target = self._kept[number]
        parallel_for(
            _copy, array.size, array.reshape(-1), target.reshape(-1), grain=_ELEMENTS_PER_CHUNK
        )
        self._taken[place] = target
        return target


def _copy(begin: int, end: int, source: np.ndarray, target: np.ndarray) -> None:
    np.copyto(target[begin:end], source[begin:end])


class Background:
    """Runs one job at a time in its own thread.

    The thread is not a daemon: a program ends only after its job, even after an exception.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], None]) -> None:
        """Start a job; call `wait` for the previous one first."""
        self._error = None
        self._thread = threading.Thread(target=self._run, args=(job,), name="pcaffe-snapshot")
        self._thread.start()

    def wait(self) -> PcaffeError | None:
        """Wait for the last job; return its PcaffeError, if any, at every call.

        Raises any other exception of the job.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None and not isinstance(self._error, PcaffeError):
            raise self._error
        return self._error

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # carried over to the thread that waits
            self._error = error
