"""Sources: where data layers find records; a file dropped in here is found by itself."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pycaffe_dist.data_scripts import how_to_make
from pycaffe_dist.errors import DataError
from pycaffe_dist.registry import Registry

_CONVERTERS = (
    "; pcaffe convert_imageset makes one of images (others: convert_mnist_data, "
    "convert_cifar_data, convert_annoset)"
)


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

    # Must all records be read for their count?
    counts_slowly: ClassVar[bool] = False

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


class Writer(ABC):
    """A database that is being written to a folder; ``errors`` are its library's."""

    errors: ClassVar[tuple[type[Exception], ...]] = ()

    @abstractmethod
    def __init__(self, folder: str): ...

    @abstractmethod
    def put(self, key: bytes, value: bytes) -> None:
        """Add a record; a second one with the same key replaces the first."""

    @abstractmethod
    def finish(self) -> None:
        """Write what is still to be written."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the files; without `finish` records may be missing."""


_WriterClass = type[Writer]


class Database(Source):
    """A source whose records can also be found by their keys, which data layers can name.

    ``Database(path)`` opens it; raises `DataError` unless it holds readable records.  A database
    that is a folder says which ``file`` marks it, and what it is called.  ``writer`` creates one;
    without it, it can only be read.
    """

    type: ClassVar[str]
    file: ClassVar[str] = ""
    called: ClassVar[str] = ""
    writer: ClassVar[_WriterClass | None] = None

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


_databases: Registry[Database] = Registry("database backend", __name__, DataError)
register = _databases.register
database_class = _databases.get
database_names = _databases.names


def open_source(path: str, backend: str) -> Database:
    """Open the database ``path`` for reading; ``backend`` is "lmdb", "leveldb" or another's name.

    Raises `DataError` when there is no such backend, and when the database is missing, unreadable,
    of another kind, damaged or empty.
    """
    return database_class(backend)(path)


def file_of(path: str, kind: type[Database]) -> str:
    """Return the file by which the folder ``path`` is known to be a database of this kind.

    Raises `DataError` when there is none.
    """
    name, one = kind.file, kind.called
    file = os.path.join(path, name)
    if os.path.isfile(file):
        return file
    if not os.path.exists(path):
        looked = f"(looked in '{os.getcwd()}')"
        raise DataError(
            f"{one.split()[-1]} '{path}' does not exist {looked}{how_to_make(path) or _CONVERTERS}"
        )
    if not os.path.isdir(path):
        raise DataError(f"'{path}' is not {one}: expected a folder with {name}, found a file")
    if not os.access(path, os.R_OK | os.X_OK):
        reason = os.strerror(errno.EACCES)
        raise DataError(f"{one.split()[-1]} '{path}' cannot be read: {reason}")
    hint = ""
    for other in map(database_class, database_names()):
        if other.file and os.path.isfile(os.path.join(path, other.file)):
            hint = f"; it looks like {other.called} (backend: {other.type.upper()})"
    raise DataError(f"'{path}' is not {one}: there is no file {name} in it{hint}")
