"""Prefetching: threads that keep a few batches ready while the net computes."""

from __future__ import annotations

import atexit
import math
import threading
import time
import weakref
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.errors import DataError
from pycaffe_dist.storage import aligned_zeros

# A reader should rarely wait for the interpreter lock.  So it prepares several batches at a time,
# up to this many bytes of tops; if batches are that small, more than Caffe's 4 are kept ready.
CHUNK_BYTES = 1 << 22
LEAST_DEPTH, MOST_DEPTH = 4, 16


def new_tops(
    shapes: Sequence[tuple[int, ...]], dtype: np.dtype, target: Any = device.HOST
) -> list[np.ndarray]:
    """Return tops of these shapes in memory that blobs can adopt and ``target`` can copy from."""
    return [_new_array(shape, dtype, target) for shape in shapes]


def _new_array(shape: tuple[int, ...], dtype: np.dtype, target: Any) -> np.ndarray:
    zeros = target.host_zeros if target.is_gpu else aligned_zeros
    with device.use(target):
        return zeros(math.prod(shape), dtype).reshape(shape)


class Buffer(NamedTuple):
    """The shape and dtype of an array of a batch, usually a top's; the first axis counts items."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Loader(Protocol):
    """Loads numbered batches, each a list of tops; used by one thread at a time."""

    dtype: np.dtype

    def top_shapes(self) -> list[tuple[int, ...]]:
        """Return the usual shapes of a batch's tops; the first axis counts its items."""
        ...

    def buffers(self) -> list[Buffer]:
        """Return the arrays for `load`: the tops except `varying`, or packed data for them."""
        ...

    def load(self, number: int, tops: list[np.ndarray]) -> int:
        """Load batches from ``number`` on; return the number of batches, maybe 0."""
        ...

    def varying(self, number: int) -> list[np.ndarray]:
        """Return the last tops of batch ``number``, just loaded: those of changing shapes."""
        return []

    def load_other(self, number: int) -> list[np.ndarray]:
        """Return `new_tops` with batch ``number``, which `load` skipped for its shape."""
        ...

    def close(self) -> None:
        """Release files and threads."""
        ...


class _Chunk:
    """The buffers of ``size`` successive batches, and the batches that are ready."""

    def __init__(
        self,
        buffers: list[Buffer],
        size: int,
        target: device.Device = device.HOST,
    ):
        self.size = size
        self.ready: SimpleQueue[list[np.ndarray] | BaseException] = SimpleQueue()
        self._batch_sizes = [shape[0] for shape, _ in buffers]
        self._tops = [
            _new_array((size * shape[0], *shape[1:]), dtype, target) for shape, dtype in buffers
        ]

    def tops(self, begin: int, end: int) -> list[np.ndarray]:
        """Return the part of each top for batches ``begin`` to ``end``."""
        return [top[begin * n : end * n] for top, n in zip(self._tops, self._batch_sizes)]


class _Readers:
    """The threads, the chunks to fill in the order of their batches, and the stop flag."""

    def __init__(self, loaders: Sequence[Loader]):
        self.stopped = False
        self._wanted: SimpleQueue[tuple[_Chunk, int] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(loader,), name="pcaffe-reader", daemon=True)
            for loader in loaders
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def fill(self, chunk: _Chunk, first: int) -> None:
        """Let a thread load the batches from number ``first`` on into ``chunk``."""
        self._wanted.put((chunk, first))

    def stop(self) -> None:
        """Tell the threads to end, without waiting for them."""
        self.stopped = True
        for _ in self._threads:
            self._wanted.put(None)

    def join(self) -> None:
        """Wait until the threads have ended."""
        for thread in self._threads:
            thread.join()

    def _run(self, loader: Loader) -> None:
        while (wanted := self._wanted.get()) is not None:
            chunk, first = wanted
            try:
                self._load(loader, chunk, first)
            except BaseException as error:  # carried over to the thread that waits for batches
                chunk.ready.put(error)

    def _load(self, loader: Loader, chunk: _Chunk, first: int) -> None:
        done = 0
        while done < chunk.size and not self.stopped:
            loaded = loader.load(first + done, chunk.tops(done, chunk.size))
            for batch in range(done, done + loaded):
                varying = loader.varying(first + batch)
                chunk.ready.put([*chunk.tops(batch, batch + 1), *varying])
            if not loaded:
                chunk.ready.put(loader.load_other(first + done))
                loaded = 1
            done += loaded


_running: weakref.WeakSet[_Readers] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """End all threads before the interpreter shuts down."""
    running = list(_running)
    for readers in running:
        readers.stop()
    for readers in running:
        readers.join()


class Prefetcher:
    """Returns batches in order, from number ``first`` on; each of the ``loaders`` has a thread.

    Any loader can load any batch, with the same result.  The threads start with the first call of
    `next` and keep at most ``depth`` batches (by default 4, or more if they are small or there are
    many threads); `close`, the collection of this object or the interpreter's exit stops them.  An
    error in a batch is raised when `next` reaches it.  If ``target`` is a GPU, the batches are in
    memory that allows overlapping copies.
    """

    def __init__(
        self,
        loaders: Sequence[Loader],
        depth: int | None = None,
        first: int = 0,
        target: device.Device = device.HOST,
    ):
        self.number = first
        self.seconds_waited = 0.0
        self.top_shapes = loaders[0].top_shapes()
        self._buffers = loaders[0].buffers()
        self._loaders, self._target = loaders, target
        self._depth = depth or self._usual_depth()
        self._chunks: list[_Chunk] = []
        self._readers: _Readers | None = None
        self._taken = 0
        self._error: BaseException | None = None
        self._stop: weakref.finalize | None = None

    def next(self) -> list[np.ndarray]:
        """Return the tops of the next batch, valid and writable until the following call.

        ``number`` then counts this batch, and ``seconds_waited`` includes the time waited for it.
        """
        if self._error is not None:
            raise self._error
        item = self._wait(self._next_chunk())
        if isinstance(item, BaseException):
            self._error = item
            raise item
        self._taken += 1
        self.number += 1
        return item

    def close(self) -> None:
        """Stop the threads and close the loaders."""
        if self._stop is not None and self._readers is not None:
            self._stop()
            self._readers.join()
        self._error = self._error or DataError("the data source has been closed")
        for loader in self._loaders:
            loader.close()

    def _next_chunk(self) -> _Chunk:
        """Return the chunk with the next batch; start to refill the previous chunk."""
        readers = self._readers or self._start()
        turn, within = divmod(self._taken, self._chunks[0].size)
        if turn and not within:
            empty = self._chunks[(turn - 1) % len(self._chunks)]
            ahead = (len(self._chunks) - 1) * empty.size
            readers.fill(empty, self.number + ahead)
        return self._chunks[turn % len(self._chunks)]

    def _wait(self, chunk: _Chunk) -> list[np.ndarray] | BaseException:
        try:
            return chunk.ready.get_nowait()
        except Empty:
            began = time.perf_counter()
            item = chunk.ready.get()
            self.seconds_waited += time.perf_counter() - began
            return item

    def _batch_bytes(self) -> int:
        return max(1, sum(math.prod(shape) * dtype.itemsize for shape, dtype in self._buffers))

    def _usual_depth(self) -> int:
        depth = max(LEAST_DEPTH, 2 * len(self._loaders), 2 * CHUNK_BYTES // self._batch_bytes())
        return min(depth, max(MOST_DEPTH, 2 * len(self._loaders)))

    def _start(self) -> _Readers:
        # While one chunk is in use, every thread has another one to fill.
        chunks = min(self._depth, len(self._loaders) + 1)
        size = max(1, min(CHUNK_BYTES // self._batch_bytes(), self._depth // chunks))
        self._readers = readers = _Readers(self._loaders)
        for turn in range(self._depth // size):
            self._chunks.append(_Chunk(self._buffers, size, self._target))
            readers.fill(self._chunks[-1], self.number + turn * size)
        readers.start()
        _running.add(readers)
        # The collector may run in any thread, also in one that a reader waits for, so it must
        # not wait for readers.
        self._stop = weakref.finalize(self, readers.stop)
        return readers
