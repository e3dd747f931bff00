"""Prefetching: a thread that keeps a few batches ready while the net computes."""

from __future__ import annotations

import math
import threading
import time
import weakref
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np

from pycaffe_dist.errors import DataError

# A reader that has to wait for the interpreter lock should wait rarely: batches are prepared
# several at a time, up to this many bytes of tops, and more than the 4 that Caffe keeps ready
# are kept where they are as small as that.
RUN_BYTES = 1 << 22
LEAST_DEPTH, MOST_DEPTH = 4, 16


class Loader(Protocol):
    """Makes numbered batches, each a list of tops; used by one thread at a time."""

    dtype: np.dtype

    def top_shapes(self) -> list[tuple[int, ...]]:
        """Return the usual shapes of a batch's tops; the first axis counts its items."""
        ...

    def load(self, number: int, tops: list[np.ndarray]) -> int:
        """Load as many batches from ``number`` on as fit; return how many it was, maybe none."""
        ...

    def load_other(self, number: int) -> list[np.ndarray]:
        """Return new tops with batch ``number``, which `load` left out for its shape."""
        ...

    def close(self) -> None:
        """Release files and threads."""
        ...


class _Ring:
    """``depth`` batches' buffers in a row, the queues between the threads, and the stop sign."""

    def __init__(self, shapes: list[tuple[int, ...]], dtype: np.dtype, depth: int):
        self.depth = depth
        self._batch_sizes = [shape[0] for shape in shapes]
        self.tops = [np.empty((depth * s[0], *s[1:]), dtype) for s in shapes]
        batch_bytes = sum(top.nbytes for top in self.tops) // depth
        self.run = max(1, min(depth, RUN_BYTES // max(1, batch_bytes)))
        self.free: SimpleQueue[int | None] = SimpleQueue()
        self.full: SimpleQueue[tuple[int, list[np.ndarray]] | BaseException] = SimpleQueue()
        self.stop = False
        for slot in range(depth):
            self.free.put(slot)

    def slots(self, first: int, count: int) -> list[np.ndarray]:
        """Return the part of each top that ``count`` slots from ``first`` on take up."""
        return [
            top[first * size : (first + count) * size]
            for top, size in zip(self.tops, self._batch_sizes)
        ]

    def take_free(self) -> tuple[int, int]:
        """Wait for a free slot; return it and how many free slots lie in a row, 0 to stop.

        Slots are given back in the order they were handed out, so free ones are neighbours.
        """
        first = self.free.get()
        if first is None or self.stop:
            return 0, 0
        count = 1
        while count < self.run and first + count < self.depth:
            try:
                if self.free.get_nowait() is None:
                    return 0, 0
            except Empty:
                break
            count += 1
        return first, count


def _read(loader: Loader, ring: _Ring, number: int) -> None:
    """What the reader thread does: batch after batch, until it is stopped or fails."""
    try:
        while True:
            slot, count = ring.take_free()
            end = slot + count
            if not count:
                return
            while slot < end and not ring.stop:
                loaded = loader.load(number, ring.slots(slot, end - slot))
                for ready in range(slot, slot + loaded):
                    ring.full.put((ready, ring.slots(ready, 1)))
                if not loaded:
                    ring.full.put((slot, loader.load_other(number)))
                    loaded = 1
                slot += loaded
                number += loaded
    except BaseException as error:  # carried over to the thread that waits for batches
        ring.full.put(error)


def _stop(ring: _Ring, thread: threading.Thread) -> None:
    ring.stop = True
    ring.free.put(None)
    if thread is not threading.current_thread():
        thread.join()


class Prefetcher:
    """Hands out a loader's batches in order, from number ``first`` on, made by a thread.

    The thread starts with the first batch that is asked for and holds at most ``depth`` of them
    (by default 4, or more if they are small); `close`, the collection of this object or the
    interpreter's exit stops it.  An error in it is raised by `next`.
    """

    def __init__(self, loader: Loader, depth: int | None = None, first: int = 0):
        self.number = first
        self.seconds_waited = 0.0
        self.top_shapes = loader.top_shapes()
        self._loader = loader
        self._depth = depth or self._usual_depth()
        self._ring: _Ring | None = None
        self._slot: int | None = None
        self._error: BaseException | None = None
        self._stop: weakref.finalize | None = None

    def next(self) -> list[np.ndarray]:
        """Return the tops of the next batch; they stay valid until the following call.

        ``number`` then counts this batch as taken, and ``seconds_waited`` the time waited for it.
        """
        if self._error is not None:
            raise self._error
        ring = self._ring or self._start()
        if self._slot is not None:
            ring.free.put(self._slot)
            self._slot = None
        try:
            item = ring.full.get_nowait()
        except Empty:
            began = time.perf_counter()
            item = ring.full.get()
            self.seconds_waited += time.perf_counter() - began
        if isinstance(item, BaseException):
            self._error = item
            raise item
        self._slot, tops = item
        self.number += 1
        return tops

    def close(self) -> None:
        """Stop the thread and close the loader."""
        if self._stop is not None:
            self._stop()
        self._error = self._error or DataError("the data source has been closed")
        self._loader.close()

    def _usual_depth(self) -> int:
        batch = self._loader.dtype.itemsize * sum(math.prod(shape) for shape in self.top_shapes)
        return min(max(LEAST_DEPTH, RUN_BYTES // max(1, batch)), MOST_DEPTH)

    def _start(self) -> _Ring:
        self._ring = ring = _Ring(self.top_shapes, self._loader.dtype, self._depth)
        thread = threading.Thread(
            target=_read, args=(self._loader, ring, self.number), name="pcaffe-reader", daemon=True
        )
        thread.start()
        self._stop = weakref.finalize(self, _stop, ring, thread)
        return ring
