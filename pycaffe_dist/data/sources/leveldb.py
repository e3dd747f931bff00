"""LevelDB databases, read through plyvel.

LevelDB writes to a database even when it is only read (it takes a lock, rotates its log and starts
a new manifest), so two ranks on one host could not read the same one, and nobody could read one on
a read-only file system.  Each reader therefore opens a view of its own: a temporary folder with
links to the tables and copies of the few small files that say which tables belong together.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator

import numpy as np
import plyvel

from pycaffe_dist.data.sources import Cursor, Records, Source
from pycaffe_dist.errors import DataError

_LEFT_OUT = ("LOCK", "LOG", "LOG.old")
_COPIED = ("CURRENT", "MANIFEST-")
# As Caffe opens its databases.
_MAX_OPEN_FILES = 100


class LevelDBSource(Source):
    """An open LevelDB; ``path`` is its folder."""

    def __init__(self, path: str):
        super().__init__(path)
        view = tempfile.mkdtemp(prefix="pcaffe-leveldb-")
        try:
            _link(path, view)
            self._db = plyvel.DB(view, max_open_files=_MAX_OPEN_FILES, paranoid_checks=True)
        except (plyvel.Error, OSError) as error:
            shutil.rmtree(view, ignore_errors=True)
            raise _error(path, error) from error
        self._remove = weakref.finalize(self, _remove, self._db, view)
        self._count: int | None = None

    @property
    def count(self) -> int:
        if self._count is None:
            with _errors_of(self.path), self._db.iterator(include_value=False) as keys:
                self._count = sum(1 for _ in keys)
        return self._count

    def cursor(self) -> LevelDBCursor:
        return LevelDBCursor(self)

    def records(self) -> plyvel.Iterator:
        """Return an iterator over all (key, value), which verifies the tables' checksums."""
        return self._db.iterator(fill_cache=False, verify_checksums=True)

    def close(self) -> None:
        self._remove()


class LevelDBCursor(Cursor):
    """A place in a LevelDB."""

    def __init__(self, source: LevelDBSource):
        super().__init__()
        self._source = source  # keeps the database open
        self._records = source.records()
        if self._next() is None:
            raise DataError(f"LevelDB '{source.path}' is empty: it holds no records")
        self._records = source.records()

    def seek(self, position: int) -> None:
        distance = position - self.position
        if distance < 0:
            self._records = self._source.records()
            distance = position
        if distance >= 4096:
            # Counting the records once is worth it for a way that may be many laps long.
            distance %= self._source.count
        with _errors_of(self._source.path):
            for _ in range(distance):
                self._advance()
        self.position = position

    def read(self, count: int, step: int = 1) -> Records:
        pieces: list[bytes] = []
        with _errors_of(self._source.path):
            for _ in range(count):
                pieces += self._advance()
                for _ in range(step - 1):
                    self._advance()
        self.position += count * step
        sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
        places = np.stack([np.cumsum(sizes) - sizes, sizes], axis=1).reshape(count, 2, 2)
        return Records(np.frombuffer(b"".join(pieces), np.uint8), places[:, 1], places[:, 0])

    def _next(self) -> tuple[bytes, bytes] | None:
        with _errors_of(self._source.path):
            return next(self._records, None)

    def _advance(self) -> tuple[bytes, bytes]:
        record = next(self._records, None)
        if record is None:
            self._records = self._source.records()
            record = next(self._records)
        return record


def open_for_reading(path: str) -> LevelDBSource:
    """Open the LevelDB in folder ``path``; raises `DataError` unless it holds readable records."""
    if not os.path.exists(path):
        raise DataError(f"LevelDB '{path}' does not exist (looked in '{os.getcwd()}')")
    if not os.path.isdir(path):
        raise DataError(f"'{path}' is not a LevelDB: expected a folder, found a file")
    if not os.path.exists(os.path.join(path, "CURRENT")):
        hint = ""
        if os.path.exists(os.path.join(path, "data.mdb")):
            hint = "; it looks like an LMDB (backend: LMDB)"
        raise DataError(f"'{path}' is not a LevelDB: there is no file CURRENT in it{hint}")
    source = LevelDBSource(path)
    source.cursor()
    return source


def _link(path: str, view: str) -> None:
    """Fill the folder ``view`` with what LevelDB needs to read the database ``path``."""
    for name in os.listdir(path):
        file = os.path.join(os.path.abspath(path), name)
        if name.startswith(_COPIED):
            shutil.copyfile(file, os.path.join(view, name))
        elif name not in _LEFT_OUT:
            os.symlink(file, os.path.join(view, name))


def _remove(db: plyvel.DB, view: str) -> None:
    db.close()
    shutil.rmtree(view, ignore_errors=True)


@contextlib.contextmanager
def _errors_of(path: str) -> Iterator[None]:
    try:
        yield
    except plyvel.Error as error:
        raise _error(path, error) from error


def _error(path: str, error: Exception) -> DataError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return DataError(f"LevelDB '{path}' cannot be read: {reason}")
