"""A database whose records come in a new order in every epoch."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.data.order import Order
from pycaffe_dist.data.sources import Database, IndexedSource, Records


class ShuffledSource(IndexedSource):
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

    def records_at(self, indices: np.ndarray) -> Records:
        return self._source.fetch([self._keys[number] for number in self._order.numbers(indices)])

    def key_at(self, position: int) -> bytes:
        return self._keys[self.number(position)]

    def close(self) -> None:
        self._source.close()
