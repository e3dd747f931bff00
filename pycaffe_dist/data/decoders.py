"""Threads that decode images for the readers of one data layer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from pycaffe_dist.errors import DataError
from pycaffe_dist.log import logger

T = TypeVar("T")
R = TypeVar("R")

# The number of unreadable images that the log names, and the number in a row that ends the run.
_NAMED = 10
_MOST_IN_A_ROW = 100
# The number of parts in which a thread's share of items is processed.
_PARTS = 4
# The number of a stream's images in progress: enough for the threads, few for the memory.
_AT_ONCE = 256


class Decoders:
    """Runs functions over images on ``threads`` threads, and handles bad images.

    With ``skip`` the next image replaces an unreadable one; else its error is raised.
    """

    def __init__(self, threads: int = 1, skip: bool = False):
        self.skipped = 0
        self.skip = skip
        self._named: set[str] = set()
        self._lock = threading.Lock()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "pcaffe-decoder") if threads > 1 else None

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterable[R]:
        """Return ``function`` of every item, in order; the calling thread works, too."""
        if self._pool is None:
            return map(function, items)
        return self._map_parts(self._pool, function, list(items))

    def _map_parts(
        self, pool: ThreadPoolExecutor, function: Callable[[T], R], items: list[T]
    ) -> Iterator[R]:
        """Give the threads several items per task, because a task has overhead."""
        size = max(1, len(items) // (self._threads * _PARTS))
        parts = [items[begin : begin + size] for begin in range(0, len(items), size)]
        for results in pool.map(lambda part: [function(item) for item in part], parts):
            yield from results

    def stream(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield ``function`` of every item, in order, with a limited number in progress."""
        remaining = iter(items)
        while part := list(islice(remaining, _AT_ONCE)):
            yield from self.map(function, part)

    def first_good(self, read: Callable[[int], R], index: int) -> R:
        """Return ``read(index)``, or for the next index at which it raises no DataError.

        Without ``skip``, or after too many errors in a row, raises the first DataError.
        """
        try:
            return read(index)
        except DataError as error:
            if not self.skip:
                raise
            self._count(error)
            first = error
        for other in range(index + 1, index + _MOST_IN_A_ROW):
            try:
                return read(other)
            except DataError:
                continue
        raise DataError(f"{first}; nor can the {_MOST_IN_A_ROW} images from there on") from first

    def close(self) -> None:
        """Stop the threads and log the number of skipped images."""
        if self._pool is not None:
            self._pool.shutdown()
        if self.skipped:
            logger.warning("Skipped image(s) that cannot be read %d time(s)", self.skipped)
            self.skipped = 0

    def _count(self, error: DataError) -> None:
        with self._lock:
            self.skipped += 1
            what = str(error)
            if len(self._named) < _NAMED and what not in self._named:
                self._named.add(what)
                logger.warning("Skipping: %s", what)
