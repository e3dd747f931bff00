"""LMDB databases, read through the lmdb library.

liblmdb maps the file and trusts it; `lmdb_pages` therefore looks at every page before it does.  The
file must not be written to while it is read.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any
from weakref import WeakValueDictionary, finalize

import lmdb
import numpy as np

from pycaffe_dist.data.sources import Cursor, Database, Records, file_of
from pycaffe_dist.data.sources.lmdb_pages import PageCheck
from pycaffe_dist.errors import DataError

# Values of this size on average are used where they lie; smaller ones are sooner copied.
_LEFT_IN_PLACE = 4096


class _Environment:
    """An LMDB that is open for reading; closed when nothing refers to it any more.

    Only records that ``pages`` has checked may be read.
    """

    def __init__(self, path: str, file: str):
        self._path, self._file = path, file
        self.pages = PageCheck(path, file)
        finalize(self, self.pages.close)
        # No lock file: nobody writes, and the folder may be read-only.
        self.lmdb = lmdb.open(path, readonly=True, create=False, lock=False)

    @contextlib.contextmanager
    def located_damage(self, number: int) -> Iterator[None]:
        """Raise `DataError` for damaged pages that a library finds which looks at those of values.

        They are looked for from record ``number`` on.
        """
        try:
            yield
        except lmdb.CorruptedError:
            for begin in (number, 0):
                PageCheck(self._path, self._file, begin).upto(self.lmdb.stat()["entries"])
            raise

    def records(self, values: list[memoryview]) -> Records:
        """Return records of these values; large ones stay in the file, and are read when used.

        So they are not waited for by a thread that holds the interpreter lock.
        """
        if sum(map(len, values)) < _LEFT_IN_PLACE * len(values):
            return Records.joined(values)
        from pycaffe_dist.kernels.datum import address  # where only keys are read, do without Numba

        arrays = [np.frombuffer(value, np.uint8) for value in values]
        places = np.array([(address(array), len(array)) for array in arrays], np.int64)
        begin = places[:, 0].min()
        span = _Span(self, int(begin), int(places.sum(axis=1).max() - begin))
        places[:, 0] -= begin
        return Records(np.asarray(span), places)


class _Span:
    """A part of the memory that an LMDB is mapped to; arrays made of it keep the LMDB open."""

    def __init__(self, environment: _Environment, address: int, size: int):
        self._environment = environment
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, True),
        }


class LmdbSource(Database):
    """An open LMDB; ``path`` is its folder."""

    def __init__(self, path: str, environment: _Environment):
        super().__init__(path)
        self._environment: _Environment | None = environment
        self._count = environment.lmdb.stat()["entries"]

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
        environment = self._opened()
        environment.pages.upto(self._count)
        with (
            _errors_of(self.path),
            environment.located_damage(0),
            environment.lmdb.begin(buffers=True) as transaction,
        ):
            pairs = transaction.cursor().getmulti(keys)
            if len(pairs) < len(keys):
                raise DataError(f"LMDB '{self.path}' is damaged: it lacks one of its own keys")
            return environment.records([value for _, value in pairs])

    def close(self) -> None:
        self._environment = None

    def _all(self, values: bool) -> Iterator[Any]:
        environment = self._opened()
        with _errors_of(self.path), environment.lmdb.begin() as transaction:
            cursor: Any = transaction.cursor()
            done, rest = 0, cursor.iternext(values=values)
            while done < self._count:
                environment.pages.upto(done)
                checked = environment.pages.records
                with environment.located_damage(done):
                    yield from islice(rest, checked - done)
                done = checked

    def _opened(self) -> _Environment:
        if self._environment is None:
            raise DataError(f"LMDB '{self.path}' has been closed")
        return self._environment


class LmdbCursor(Cursor):
    """A place in an LMDB.

    The library gives the interpreter lock away for every record, and a training thread takes it:
    the loops over records are therefore short, and in C where possible.
    """

    def __init__(self, source: LmdbSource, environment: _Environment):
        super().__init__()
        self._path, self._count = source.path, source.count
        self._environment = environment  # keeps it open
        with _errors_of(self._path):
            self._cursor = environment.lmdb.begin(buffers=True).cursor()
        # The number of the record that the library's cursor is on; `_count` is behind the last.
        self._at = self._count

    def seek(self, position: int) -> None:
        self.position = position

    def read(self, count: int, step: int = 1) -> Records:
        values: list[memoryview] = []
        number = self.position % self._count
        with _errors_of(self._path), self._environment.located_damage(number):
            while len(values) < count:
                values += self._lap(count - len(values), step)
            return self._environment.records(values)

    def key(self) -> bytes:
        number = self.position % self._count
        with _errors_of(self._path), self._environment.located_damage(number):
            self._move()
            return bytes(self._cursor.key())

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


_open: WeakValueDictionary[str, _Environment] = WeakValueDictionary()
_opening = threading.Lock()
_CLOSING_SECONDS = 2.0


def _environment(path: str, file: str) -> _Environment:
    """Return the one environment of ``path``: the library opens a database once per process."""
    place = os.path.realpath(path)
    with _opening:
        environment = _open.get(place)
        deadline = time.monotonic() + _CLOSING_SECONDS
        while environment is None:
            try:
                environment = _open[place] = _Environment(path, file)
            except lmdb.Error as error:
                # One that nothing refers to any more may be about to be closed by another thread.
                if "already open" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.001)
        return environment


def open_for_reading(path: str) -> LmdbSource:
    """Open the LMDB in folder ``path``; raises `DataError` unless it holds readable records."""
    file = file_of(path, "lmdb")
    with _errors_of(path):
        environment = _environment(path, file)
        environment.pages.begin()
    source = LmdbSource(path, environment)
    if source.count == 0:
        raise DataError(f"LMDB '{path}' is empty: it holds no records")
    return source


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
