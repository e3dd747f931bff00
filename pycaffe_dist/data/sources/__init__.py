"""Sources: where data layers find records, one file per kind of storage.

A source module defines ``open_for_reading(path) -> Source``; `open_source` picks it by name.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from pycaffe_dist.errors import DataError, did_you_mean

BACKENDS = ("leveldb", "lmdb")


@dataclass
class Records:
    """Some records, in reading order, as pieces of one byte buffer.

    ``buffer`` is a read-only uint8 array (of an LMDB: the mapped file itself); row i of ``values``
    and of ``keys``, both (n, 2) int64, is where record i's value and key begin in the buffer and
    how many bytes they have.
    """

    buffer: np.ndarray
    values: np.ndarray
    keys: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def part(self, begin: int, end: int) -> Records:
        """Return records ``begin`` to ``end``, without copying."""
        return Records(self.buffer, self.values[begin:end], self.keys[begin:end])

    def value(self, i: int) -> bytes:
        """Return the value of record ``i``."""
        start, size = self.values[i]
        return self.buffer[start : start + size].tobytes()

    def key(self, i: int) -> str:
        """Return the key of record ``i`` as text."""
        start, size = self.keys[i]
        return self.buffer[start : start + size].tobytes().decode("utf-8", "backslashreplace")


class Cursor(ABC):
    """A place in the endless stream of a source's records; record i is record i modulo the count.

    ``position`` is the stream index of the next record.  A cursor belongs to one thread.
    """

    def __init__(self) -> None:
        self.position = 0

    @abstractmethod
    def seek(self, position: int) -> None:
        """Move to stream index ``position``; forward moves do not touch the values passed over."""

    @abstractmethod
    def read(self, count: int, step: int = 1) -> Records:
        """Return records position, position + step, …; move on by ``count * step``.

        The bytes stay valid as long as the `Records` are referenced.  Raises `DataError`.
        """


class Source(ABC):
    """A readable data set of (key, value) records, in the order of their keys."""

    def __init__(self, path: str):
        self.path = path

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of records, at least 1."""

    @abstractmethod
    def cursor(self) -> Cursor:
        """Return a new cursor on the first record."""

    @abstractmethod
    def close(self) -> None:
        """Release files; cursors and records of this source must not be used any more."""


def open_source(path: str, backend: str) -> Source:
    """Open the database ``path`` for reading; ``backend`` is "lmdb" or "leveldb".

    Raises `DataError` when it is missing, unreadable, of another kind, damaged or empty.
    """
    if backend not in BACKENDS:
        known = f"; known are {', '.join(BACKENDS)}"
        raise DataError(
            f"unknown database backend '{backend}'{did_you_mean(backend, BACKENDS) or known}"
        )
    module = importlib.import_module(f"{__name__}.{backend}")
    return module.open_for_reading(path)
