"""Scratch memory for all kernels: the layers use one block in turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

ALIGNMENT = 64


class Workspace:
    """Lends memory; keeps the largest block that came back for the next request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free = np.empty(0, np.uint8)

    @property
    def kept_bytes(self) -> int:
        """The bytes that are kept while nobody uses them."""
        return self._free.nbytes

    @contextmanager
    def lend(self, floats: int) -> Iterator[np.ndarray]:
        """Return a context with an aligned float32 array of undefined contents."""
        wanted = 4 * floats + ALIGNMENT
        with self._lock:
            memory, self._free = self._free, np.empty(0, np.uint8)
        if memory.size < wanted:
            memory = np.empty(wanted, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        try:
            yield memory[start : start + 4 * floats].view(np.float32)
        finally:
            with self._lock:
                if memory.size > self._free.size:
                    self._free = memory


shared = Workspace()
