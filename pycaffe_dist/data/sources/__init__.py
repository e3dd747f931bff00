"""Sources: where data layers find records, one file per kind of storage.

A source module defines ``open_for_reading(path) -> Database``; `open_source` picks it by name.
"""

from __future__ import annotations

import errno
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycaffe_dist.errors import DataError, did_you_mean

BACKENDS = ("leveldb", "lmdb")
# The file by which a folder is known to be one, and what one is called.
_FILES = {"leveldb": ("CURRENT", "a LevelDB"), "lmdb": ("data.mdb", "an LMDB")}


@dataclass
class Records:
    """Some records, in reading order, as pieces of one byte buffer.

    ``buffer`` is a read-only uint8 array; row i of ``values``, (n, 2) int64, is where record i's
    value begins in the buffer and how many bytes it has.
    """

    buffer: np.ndarray
    values: np.ndarray

    @classmethod
    def joined(cls, values: list[Any]) -> Records:
        """Return records of these values (bytes or memoryviews), copied."""
        sizes = np.fromiter(map(len, values), np.int64, len(values))
        places = np.stack([np.cumsum(sizes) - sizes, sizes], axis=1)
        return cls(np.frombuffer(b"".join(values), np.uint8), places)

    def __len__(self) -> int:
        return len(self.values)

    def part(self, begin: int, end: int) -> Records:
        """Return records ``begin`` to ``end``, without copying."""
        return Records(self.buffer, self.values[begin:end])

    def value(self, i: int) -> bytes:
        """Return the value of record ``i``."""
        start, size = self.values[i]
        return self.buffer[start : start + size].tobytes()


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

        Raises `DataError`.
        """

    @abstractmethod
    def key(self) -> bytes:
        """Return the key of the record at ``position``."""


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

    def describe(self, position: int) -> str:
        """Say which record has stream index ``position``, with its key, for messages."""
        cursor = self.cursor()
        cursor.seek(position)
        key = cursor.key().decode("utf-8", "backslashreplace")
        return f"'{self.path}': record {self.number(position)} (key '{key}')"

    def number(self, position: int) -> int:
        """Return the number of the record with stream index ``position``, in the keys' order."""
        return position % self.count

    @abstractmethod
    def close(self) -> None:
        """Release files; cursors and records of this source must not be used any more."""


class Database(Source):
    """A source whose records can also be found by their keys."""

    @abstractmethod
    def keys(self) -> Iterator[bytes]:
        """Yield every record's key, once, in order; values are not touched where that is possible.

        Raises `DataError`.
        """

    @abstractmethod
    def fetch(self, keys: list[bytes]) -> Records:
        """Return the records with these keys, in this order; raises `DataError`."""

    @abstractmethod
    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every record's key and value, once, in order."""


class IndexedSource(Source):
    """A source that finds any of its records as soon as another one."""

    @abstractmethod
    def records_at(self, indices: np.ndarray) -> Records:
        """Return the records at these stream indices; raises `DataError`."""

    @abstractmethod
    def key_at(self, position: int) -> bytes:
        """Return the key of the record at stream index ``position``."""

    def cursor(self) -> Cursor:
        return _IndexedCursor(self)


class _IndexedCursor(Cursor):
    def __init__(self, source: IndexedSource):
        super().__init__()
        self._source = source

    def seek(self, position: int) -> None:
        self.position = position

    def read(self, count: int, step: int = 1) -> Records:
        indices = self.position + step * np.arange(count)
        self.position += count * step
        return self._source.records_at(indices)

    def key(self) -> bytes:
        return self._source.key_at(self.position)


def open_source(path: str, backend: str) -> Database:
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


def file_of(path: str, backend: str) -> str:
    """Return the file by which the folder ``path`` is known to be such a database.

    Raises `DataError` when there is none.
    """
    name, one = _FILES[backend]
    kind = one.split()[-1]
    file = os.path.join(path, name)
    if os.path.isfile(file):
        return file
    if not os.path.exists(path):
        raise DataError(f"{kind} '{path}' does not exist (looked in '{os.getcwd()}')")
    if not os.path.isdir(path):
        raise DataError(f"'{path}' is not {one}: expected a folder with {name}, found a file")
    if not os.access(path, os.R_OK | os.X_OK):
        raise DataError(f"{kind} '{path}' cannot be read: {os.strerror(errno.EACCES)}")
    hint = ""
    for other, (mark, what) in _FILES.items():
        if os.path.isfile(os.path.join(path, mark)):
            hint = f"; it looks like {what} (backend: {other.upper()})"
    raise DataError(f"'{path}' is not {one}: there is no file {name} in it{hint}")
