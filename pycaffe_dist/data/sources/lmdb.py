"""LMDB databases, read through the lmdb library.

A source sees the database as it was when it was opened, whatever another process writes to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

import lmdb

from pycaffe_dist.data.sources import Cursor, Database, Records, Writer, file_of, register
from pycaffe_dist.data.sources.lmdb_environment import Environment, environment
from pycaffe_dist.errors import DataError

# Records per transaction, as in Caffe's tools.
_TRANSACTION = 1000
_FIRST_MAP_SIZE = 1 << 26


class LmdbWriter(Writer):
    """An LMDB that is being written."""

    errors = (lmdb.Error,)

    def __init__(self, folder: str):
        self._size = _FIRST_MAP_SIZE
        self._env = lmdb.open(folder, map_size=self._size, lock=False, sync=False)
        self._waiting: list[tuple[bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self._waiting.append((key, value))
        if len(self._waiting) == _TRANSACTION:
            self._commit()

    def finish(self) -> None:
        self._commit()
        self._env.sync(True)

    def close(self) -> None:
        self._env.close()

    def _commit(self) -> None:
        while True:
            try:
                with self._env.begin(write=True) as transaction:
                    for key, value in self._waiting:
                        transaction.put(key, value)
            except lmdb.MapFullError:
                self._size *= 2
                self._env.set_mapsize(self._size)
            else:
                self._waiting.clear()
                return


@register("lmdb")
class LmdbSource(Database):
    """An open LMDB; ``path`` is its folder."""

    file, called = "data.mdb", "an LMDB"
    writer = LmdbWriter

    def __init__(self, path: str):
        super().__init__(path)
        file = file_of(path, LmdbSource)
        with _errors_of(path):
            opened = environment(path, file)
            opened.pages.begin()
        self._environment: Environment | None = opened
        self._count = opened.count
        if self._count == 0:
            raise DataError(f"LMDB '{path}' is empty: it holds no records")

    @property
    def count(self) -> int:
        return self._count

    def cursor(self) -> LmdbCursor:
        return LmdbCursor(self, self._opened())

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return self._all(values=True)

    def keys(self) -> Iterator[bytes]:
        return self._all(values=False)

    def fetch(self, keys: list[bytes]) -> Records:
        opened = self._opened()
        opened.pages.upto(self._count)
        with _errors_of(self.path):
            reading = opened.reading()
            with opened.turn(reading, 0):
                cursor: Any = reading.transaction.cursor()
                pairs = cursor.getmulti(keys)
                if len(pairs) < len(keys):
                    raise DataError(f"LMDB '{self.path}' is damaged: it lacks one of its own keys")
                return opened.records([value for _, value in pairs])

    def close(self) -> None:
        self._environment = None

    def _all(self, values: bool) -> Iterator[Any]:
        opened = self._opened()
        with _errors_of(self.path):
            reading = opened.reading()
            cursor: Any = reading.transaction.cursor()
            done, rest = 0, cursor.iternext(values=values)
            while done < self._count:
                opened.pages.upto(done)
                checked = opened.pages.records
                with opened.turn(reading, done):
                    found = list(islice(rest, checked - done))
                for item in found:
                    yield tuple(map(bytes, item)) if values else bytes(item)
                done = checked

    def _opened(self) -> Environment:
        if self._environment is None:
            raise DataError(f"LMDB '{self.path}' has been closed")
        return self._environment


class LmdbCursor(Cursor):
    """A place in an LMDB.

    The library gives the interpreter lock away for every record, and a training thread takes it:
    the loops over records are therefore short, and in C where possible.
    """

    def __init__(self, source: LmdbSource, opened: Environment):
        super().__init__()
        self._path, self._count = source.path, source.count
        self._environment = opened  # keeps it open
        with _errors_of(self._path):
            self._reading = opened.reading()
            with self._reading.turn:
                self._cursor: Any = self._reading.transaction.cursor()
        # The number of the record that the library's cursor is on; `_count` is behind the last.
        self._at = self._count

    def seek(self, position: int) -> None:
        self.position = position

    def read(self, count: int, step: int = 1) -> Records:
        values: list[memoryview] = []
        with self._turn():
            while len(values) < count:
                values += self._lap(count - len(values), step)
            return self._environment.records(values)

    def key(self) -> bytes:
        with self._turn():
            self._move()
            return bytes(self._cursor.key())

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        number = self.position % self._count
        with _errors_of(self._path), self._environment.turn(self._reading, number):
            yield

    def _lap(self, most: int, step: int) -> list[memoryview]:
        """Return the values from here on, ``step`` records apart, no further than the end."""
        self._move()
        wanted = min((most - 1) * step + 1, self._count - self._at)
        self._environment.pages.upto(self._at + wanted - 1)
        value = self._cursor.value
        # An iteration over keys does not touch the values that are passed over; lmdb 3 looks at the
        # first page of long ones.
        keys = self._cursor.iternext(values=False)
        values = [value() for _ in islice(keys, 0, wanted, step)]
        if len(values) < -(-wanted // step):
            raise DataError(f"LMDB '{self._path}' has changed while it was read")
        self._at += wanted - 1
        self.position += len(values) * step
        return values

    def _move(self) -> None:
        """Put the library's cursor on the record at ``position``."""
        number = self.position % self._count
        self._environment.pages.upto(number)
        if number < self._at:
            self._cursor.first()
            self._at = 0
        if number > self._at:
            keys = self._cursor.iternext(values=False)
            next(islice(keys, number - self._at, None), None)
            self._at = number


@contextlib.contextmanager
def _errors_of(path: str) -> Iterator[None]:
    try:
        yield
    except lmdb.InvalidError as error:
        raise DataError(f"'{path}' is not an LMDB, or its data.mdb is damaged") from error
    except lmdb.Error as error:
        words = str(error).removeprefix(f"{path}: ")
        raise DataError(f"LMDB '{path}' cannot be read: {words}") from error
    except OSError as error:
        raise DataError(f"LMDB '{path}' cannot be read: {error.strerror}") from error
