"""A database whose records come in a new order in every epoch."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.data.order import Order
from pycaffe_dist.data.sources import Cursor, Database, Records, Source


class ShuffledSource(Source):
    """The records of ``source``, shuffled by ``key``; it reads all keys, once, and keeps them.

    All ranks that share the key share the order, so that records that are interleaved over ranks
    are disjoint shares of each epoch.
    """

    def __init__(self, source: Database, key: int):
        super().__init__(source.path)
        self._source = source
        self._keys = list(source.keys())
        self._order = Order(len(self._keys), True, key)

    @property
    def count(self) -> int:
        return len(self._keys)

    def number(self, position: int) -> int:
        return self._order.number(position)

    def cursor(self) -> Cursor:
        return _ShuffledCursor(self)

    def close(self) -> None:
        self._source.close()

    def keys_at(self, indices: np.ndarray) -> list[bytes]:
        """Return the keys of the records at stream ``indices``."""
        return [self._keys[number] for number in self._order.numbers(indices)]

    def records(self, keys: list[bytes]) -> Records:
        """Return the records with these keys."""
        return self._source.fetch(keys)


class _ShuffledCursor(Cursor):
    def __init__(self, source: ShuffledSource):
        super().__init__()
        self._source = source

    def seek(self, position: int) -> None:
        self.position = position

    def read(self, count: int, step: int = 1) -> Records:
        keys = self._source.keys_at(self.position + step * np.arange(count))
        self.position += count * step
        return self._source.records(keys)

    def key(self) -> bytes:
        return self._source.keys_at(np.array([self.position]))[0]
