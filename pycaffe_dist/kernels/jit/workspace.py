"""Scratch memory for all kernels: the layers use one block in turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from pycaffe_dist.threads import note_lent

ALIGNMENT = 64


class Workspace:
    """Lends memory; keeps the blocks that came back, as many as were lent at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[np.ndarray] = []

    @property
    def kept_bytes(self) -> int:
        """The bytes that are kept while nobody uses them."""
        return sum(block.nbytes for block in self._free)

    @contextmanager
    def lend(self, floats: int) -> Iterator[np.ndarray]:
        """Return a context with an aligned float32 array of undefined contents."""
        wanted = 4 * floats + ALIGNMENT
        with self._lock:
            memory = self._take(wanted)
        if memory is None or memory.size < wanted:
            memory = np.empty(wanted, np.uint8)
        note_lent(memory)
        start = -memory.ctypes.data % ALIGNMENT
        try:
            yield memory[start : start + 4 * floats].view(np.float32)
        finally:
            self.give_back([memory])

    def claim(self, blocks: Sequence[np.ndarray]) -> bool:
        """Take blocks that were lent before; return False, and take none, if any is not free."""
        with self._lock:
            left = [block for block in self._free if not any(block is other for other in blocks)]
            if len(self._free) - len(left) < len(blocks):
                return False
            self._free = left
        return True

    def give_back(self, blocks: Sequence[np.ndarray]) -> None:
        """Let others use blocks again."""
        with self._lock:
            self._free.extend(blocks)

    def _take(self, wanted: int) -> np.ndarray | None:
        """Return the smallest free block that is large enough, else the largest one."""
        self._free.sort(key=lambda block: block.size)
        for index, block in enumerate(self._free):
            if block.size >= wanted:
                return self._free.pop(index)
        return self._free.pop() if self._free else None


shared = Workspace()
