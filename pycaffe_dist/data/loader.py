"""Batches of transformed images and labels, made from a database's Datums."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pycaffe_dist.data.image import decode_image
from pycaffe_dist.data.partition import Shard
from pycaffe_dist.data.sources import Records, Source
from pycaffe_dist.data.transformer import Shape, Transformer
from pycaffe_dist.errors import DataError
from pycaffe_dist.kernels.datum import (
    CHANNELS,
    COLUMNS,
    DATA,
    ENCODED,
    FLOATS,
    HEIGHT,
    LABEL,
    SIZE,
    WIDTH,
    parse_datums,
)

DECODING_THREADS = 4
# Small records are read this many bytes ahead: a call for many batches waits for the interpreter
# lock no more often than a call for one.
AHEAD_BYTES = 1 << 22


class _Chunk:
    """Neighbouring records of one rank, parsed; those that are encoded are decoded when needed.

    Record i has stream index ``first + i * step``, which is its key in ``images``.
    """

    def __init__(
        self,
        first: int,
        step: int,
        records: Records,
        table: np.ndarray,
        images: dict[int, np.ndarray] | None = None,
    ):
        self.first = first
        self.step = step
        self.records = records
        self.table = table
        self.images: dict[int, np.ndarray] = {} if images is None else images

    def __len__(self) -> int:
        return len(self.records)

    def part(self, begin: int, end: int) -> _Chunk:
        """Return records ``begin`` to ``end``, without copying."""
        first = self.index(begin)
        return _Chunk(
            first, self.step, self.records.part(begin, end), self.table[begin:end], self.images
        )

    def index(self, i: int) -> int:
        """Return the stream index of record ``i``."""
        return self.first + i * self.step

    def image(self, i: int) -> np.ndarray | None:
        """Return the decoded image of record ``i``, or None when it is not encoded."""
        return self.images.get(self.index(i))

    def shape(self, i: int) -> Shape:
        """Return the (C, H, W) of record ``i`` before it is transformed."""
        image = self.image(i)
        if image is not None:
            return image.shape
        row = self.table[i]
        return (int(row[CHANNELS]), int(row[HEIGHT]), int(row[WIDTH]))


class DatumLoader:
    """Makes a rank's batches, numbered from 0; batch b is a function of b alone.

    Its tops are images (batch_size, C, h, w) and, with ``labels``, labels (batch_size,), of the
    transformer's dtype.  ``skip`` records at the beginning of the stream are left out.  A loader
    belongs to one thread at a time.
    """

    def __init__(
        self,
        source: Source,
        transformer: Transformer,
        batch_size: int,
        shard: Shard | None = None,
        skip: int = 0,
        labels: bool = True,
    ):
        self.dtype = transformer.dtype
        self._source = source
        self._transformer = transformer
        self._batch_size = batch_size
        self._shard = shard or Shard()
        self._skip = skip
        self._labels = labels
        self._cursor = source.cursor()
        self._decoders: ThreadPoolExecutor | None = None
        first = self._read_chunk(skip + self._shard.first_record(0, batch_size), 1)
        # Records that were read ahead, and the number of the batch that they begin with.
        self._held = (0, first)
        self._decode(first)
        self._check(first, 0)
        # The shape of all images, unless some batches are of another one.
        self._shape = first.shape(0)
        self._ahead = AHEAD_BYTES // max(1, int(first.records.values[0, 1]))

    def top_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of a batch's tops, as the first record makes them expect."""
        return self._top_shapes(self._shape)

    def load(self, number: int, tops: list[np.ndarray]) -> int:
        """Load batches ``number``, ``number + 1``, … into ``tops``; return how many were loaded.

        The tops' first axis has room for one or several batches.  Fewer are loaded, maybe none,
        when a batch has images of another shape: `load_other` loads that one.
        """
        chunk = self._read(number, len(tops[0]) // self._batch_size)
        return self._fill(chunk, self._shape, tops) // self._batch_size

    def load_other(self, number: int) -> list[np.ndarray]:
        """Return new tops with batch ``number``, whose images may be of any one shape."""
        chunk = self._read(number, 1)
        shape = chunk.shape(0)
        tops = [np.empty(top, self.dtype) for top in self._top_shapes(shape)]
        done = self._fill(chunk, shape, tops)
        if done < self._batch_size:
            raise DataError(
                f"{self._describe(chunk, done)} has an image of shape {chunk.shape(done)} "
                f"(channels, height, width), but its batch began with one of {shape}: "
                "all images of a batch must have one shape"
            )
        return tops

    def close(self) -> None:
        """Stop the threads that decode images, if there are any, and close the source."""
        if self._decoders is not None:
            self._decoders.shutdown()
        self._source.close()

    def _top_shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        n = self._batch_size
        data = (n, *self._transformer.output_shape(shape))
        return [data, (n,)] if self._labels else [data]

    def _read(self, number: int, batches: int) -> _Chunk:
        """Return the records of ``batches`` batches, or of fewer; what is left over is kept."""
        size, shard = self._batch_size, self._shard
        first, chunk = self._held
        begin = (number - first) * size
        if begin < 0 or begin + size > len(chunk):
            many = max(batches, self._ahead // size)
            if shard.unit == "batch" and shard.size > 1:
                many = 1  # this rank's batches do not follow one another
            start = self._skip + shard.first_record(number, size)
            chunk, begin = self._read_chunk(start, many * size), 0
            self._held = (number, chunk)
        part = chunk.part(begin, min(begin + batches * size, len(chunk)))
        self._decode(part)
        return part

    def _read_chunk(self, start: int, count: int) -> _Chunk:
        self._cursor.seek(start)
        records = self._cursor.read(count, self._shard.step)
        table = np.empty((count, COLUMNS), np.int64)
        chunk = _Chunk(start, self._shard.step, records, table)
        bad = parse_datums(records.buffer, records.values, table)
        if bad < count:
            size = records.values[bad, 1]
            raise DataError(f"{self._describe(chunk, bad)} is not a Datum ({size} bytes)")
        return chunk

    def _decode(self, chunk: _Chunk) -> None:
        """Decode the encoded images of ``chunk`` that are not yet, and forget all others."""
        encoded = [(int(i), chunk.index(int(i))) for i in np.flatnonzero(chunk.table[:, ENCODED])]
        kept = {index: chunk.images[index] for _, index in encoded if index in chunk.images}
        missing = [(i, index) for i, index in encoded if index not in kept]
        if missing:
            if self._decoders is None:
                threads = min(DECODING_THREADS, os.cpu_count() or 1)
                self._decoders = ThreadPoolExecutor(threads, "pcaffe-decoder")
            images = self._decoders.map(lambda pair: self._decoded(chunk, pair[0]), missing)
            kept.update(zip((index for _, index in missing), images))
        chunk.images.clear()
        chunk.images.update(kept)

    def _decoded(self, chunk: _Chunk, i: int) -> np.ndarray:
        row = chunk.table[i]
        data = chunk.records.buffer[row[DATA] : row[DATA] + row[SIZE]]
        return decode_image(data, self._transformer.color, self._describe(chunk, i))

    def _fill(self, chunk: _Chunk, shape: Shape, tops: list[np.ndarray]) -> int:
        """Transform records into tops until one is of another shape; return how many."""
        data = tops[0][: len(chunk)]
        labels = tops[1] if self._labels else np.empty(0, self.dtype)
        done = 0
        while True:
            done = self._transformer.datums(
                chunk.records, chunk.table, done, (chunk.first, chunk.step), shape, data, labels
            )
            if done == len(data):
                return done
            self._check(chunk, done)
            if chunk.shape(done) != shape:
                return done
            self._transformer.image(chunk.images[chunk.index(done)], chunk.index(done), data[done])
            if self._labels:
                labels[done] = chunk.table[done, LABEL]
            done += 1

    def _check(self, chunk: _Chunk, i: int) -> None:
        """Raise DataError unless record ``i`` holds an image."""
        if chunk.image(i) is not None:
            return
        channels, height, width = chunk.shape(i)
        size, floats = chunk.table[i, SIZE], chunk.table[i, FLOATS]
        if min(channels, height, width) < 1:
            raise DataError(
                f"{self._describe(chunk, i)} holds no image: channels, height and width must be "
                f"positive, found {channels}, {height} and {width}"
            )
        expected = channels * height * width
        if size != expected and (size or floats != expected):
            raise DataError(
                f"{self._describe(chunk, i)} should hold {expected} values (channels {channels}, "
                f"height {height}, width {width}), found {size} bytes and {floats} floats"
            )

    def _describe(self, chunk: _Chunk, i: int) -> str:
        number = chunk.index(i) % self._source.count
        return f"'{self._source.path}': record {number} (key '{chunk.records.key(i)}')"
