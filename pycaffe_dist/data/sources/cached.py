"""A database's records in memory that all processes of a node share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO

import numpy as np
from google.protobuf.message import DecodeError

from pycaffe_dist.data.decoders import Decoders
from pycaffe_dist.data.image import decode_image
from pycaffe_dist.data.node_memory import NodeMemory
from pycaffe_dist.data.options import GIB
from pycaffe_dist.data.order import Order
from pycaffe_dist.data.sources import Database, IndexedSource, Records, open_source
from pycaffe_dist.errors import DataError
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2

# What the memory holds: values, keys, filling, the sizes of the values and of the keys, and these
# counts: records and bytes of values.
_LAYOUT = 1
_COUNTS = 2


class RecordCache:
    """All records of the database ``path``, read once by one process of the node.

    With ``decoded`` encoded images are decoded, as ``color`` says (see `decode_image`), before they
    are kept; those that cannot be are kept as they are.  Raises `DataError` when the database
    cannot be read or needs more than ``limit`` bytes.
    """

    def __init__(
        self,
        path: str,
        backend: str,
        limit: int,
        decoded: bool = False,
        color: bool | None = None,
        decoders: Decoders | None = None,
    ):
        self.path = path
        self._backend, self._limit, self._color = backend, limit, color
        self._decoders = (decoders or Decoders()) if decoded else None
        open_source(path, backend).close()  # says what is wrong with it
        identity = (_LAYOUT, backend, os.path.realpath(path), _files(path), decoded, color)
        self._memory = NodeMemory(repr(identity), self._fill)
        count, value_bytes = self._numbers(-_COUNTS, _COUNTS)
        sizes = self._numbers(-_COUNTS - 2 * count, 2 * count)
        self.values = _places(sizes[:count], 0)
        self._keys = _places(sizes[count:], value_bytes)
        self.bytes = self._memory.bytes
        logger.info("Reading '%s' from memory: %d records", path, count)

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self.values)

    def key(self, number: int) -> bytes:
        """Return the key of a record."""
        begin, size = self._keys[number]
        return self.bytes[begin : begin + size].tobytes()

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()

    def _numbers(self, begin: int, count: int) -> np.ndarray:
        place = len(self._memory.bytes) + 8 * begin
        return self._memory.bytes[place : place + 8 * count].view(np.int64)

    def _fill(self, file: IO[bytes]) -> None:
        source = open_source(self.path, self._backend)
        keys: list[bytes] = []
        sizes: list[int] = []
        total = 0
        for key, value in self._items(source):
            total += len(value) + len(key)
            if total > self._limit:
                raise DataError(
                    f"'{self.path}' does not fit into a cache of {self._limit / GIB:g} GiB (see "
                    f"--cache_limit): {len(keys)} of its {source.count} records do"
                )
            file.write(value)
            keys.append(key)
            sizes.append(len(value))
        source.close()
        file.write(b"".join(keys))
        file.write(bytes(-total % 8))
        numbers = [*sizes, *map(len, keys), len(keys), sum(sizes)]
        file.write(np.array(numbers, np.int64).tobytes())
        logger.info("Cached '%s': %.2f GiB", self.path, total / GIB)

    def _items(self, source: Database) -> Iterator[tuple[bytes, bytes]]:
        if self._decoders is None:
            return source.items()
        return self._decoders.stream(self._decode, source.items())

    def _decode(self, item: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        key, value = item
        try:
            datum = caffe_pb2.Datum.FromString(value)
            if not datum.encoded:
                return item
            image = decode_image(datum.data, self._color, lambda: "")
        except (DataError, DecodeError):  # it is told, or skipped, when it is its turn to be used
            return item
        datum.channels, datum.height, datum.width = image.shape
        datum.data, datum.encoded = image.tobytes(), False
        return key, datum.SerializeToString()


class CachedSource(IndexedSource):
    """The records of a `RecordCache`, in an order."""

    def __init__(self, cache: RecordCache, order: Order):
        super().__init__(cache.path)
        self.cache = cache
        self.order = order

    @property
    def count(self) -> int:
        return self.cache.count

    def number(self, position: int) -> int:
        return self.order.number(position)

    def records_at(self, indices: np.ndarray) -> Records:
        return Records(self.cache.bytes, self.cache.values[self.order.numbers(indices)])

    def key_at(self, position: int) -> bytes:
        return self.cache.key(self.number(position))

    def close(self) -> None:
        """Detach from the cache; other processes may go on using it."""


def _places(sizes: np.ndarray, begin: int) -> np.ndarray:
    """Return the beginnings and sizes of pieces that follow one another, (n, 2)."""
    return np.stack([begin + np.cumsum(sizes) - sizes, sizes], axis=1)


def _files(path: str) -> list[tuple[str, int, int]]:
    """Return the names, sizes and times of a database's files, but not of locks and logs."""
    found = []
    for name in sorted(os.listdir(path)):
        if name not in ("lock.mdb", "LOCK", "LOG", "LOG.old"):
            state = os.stat(os.path.join(path, name))
            found.append((name, state.st_size, state.st_mtime_ns))
    return found
