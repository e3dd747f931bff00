"""LevelDB databases, read through plyvel.

LevelDB writes to a database even when it is only read (it takes a lock, rotates its log and starts
a new manifest), so two ranks on one host could not read the same one, and nobody could read one on
a read-only file system.  Each reader therefore opens a view of its own: a temporary folder with
links to the tables and copies of the few small files that say which tables belong together.  What
killed processes leave of theirs, the next view removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import plyvel

from pycaffe_dist.data.sources import Cursor, Database, Records, Writer, file_of, register
from pycaffe_dist.data.sources.leveldb_files import check_files, damage
from pycaffe_dist.errors import DataError

# Names of views' folders begin so.
_VIEW = "pcaffe-leveldb-"
_LEFT_OUT = ("LOCK", "LOG", "LOG.old")
_COPIED = ("CURRENT", "MANIFEST-")
# Further away than this, it is worth counting the records to leave out whole laps.
_WORTH_COUNTING = 4096
# Records per batch that is written, as in Caffe's tools.
_TRANSACTION = 1000
# As Caffe opens its databases.
_MAX_OPEN_FILES = 100


class _View:
    """A database opened through links in a temporary folder, and its iterators.

    Iterators must be closed before their database; left to the garbage collector, plyvel deletes
    them in any order, and LevelDB crashes.  They are therefore kept here and closed by `close`.
    """

    def __init__(self, path: str):
        self._iterators: list[plyvel.RawIterator] = []
        _remove_leftovers()
        self._folder, self._lock = _locked_folder()
        try:
            self._link(path)
            self._db = plyvel.DB(self._folder, max_open_files=_MAX_OPEN_FILES, paranoid_checks=True)
        except BaseException:
            self._remove()
            raise

    def iterator(self) -> plyvel.RawIterator:
        """Return an iterator that verifies the tables' checksums."""
        iterator = self._db.raw_iterator(fill_cache=False, verify_checksums=True)
        self._iterators.append(iterator)
        return iterator

    def value(self, key: bytes) -> bytes:
        """Return a record's value; raises plyvel.Error when there is none."""
        value = self._db.get(key, verify_checksums=True, fill_cache=False)
        if value is None:
            raise plyvel.CorruptionError("it lacks one of its own keys")
        return value

    def close(self) -> None:
        """Close the iterators, then the database, and remove the folder."""
        for iterator in self._iterators:
            iterator.close()
        self._db.close()
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

    def _link(self, path: str) -> None:
        for name in os.listdir(path):
            file = os.path.join(os.path.abspath(path), name)
            if name.startswith(_COPIED):
                shutil.copyfile(file, os.path.join(self._folder, name))
            elif name not in _LEFT_OUT:
                os.symlink(file, os.path.join(self._folder, name))


def _locked_folder() -> tuple[str, int]:
    """Create a view's folder; it is locked until the descriptor is closed or the process ends."""
    while True:
        folder = tempfile.mkdtemp(prefix=_VIEW)
        with contextlib.suppress(FileNotFoundError):  # taken for a leftover before it was locked
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.isdir(folder):
                return folder, lock
            os.close(lock)


def _remove_leftovers() -> None:
    """Remove the folders of views that nobody has locked: MPI kills ranks when one has failed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_VIEW}*"):
        with contextlib.suppress(OSError):  # another user's, or just removed
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


class LevelDBWriter(Writer):
    """A LevelDB that is being written."""

    errors = (plyvel.Error,)

    def __init__(self, folder: str):
        # As Caffe creates its databases.
        self._db = plyvel.DB(
            folder,
            create_if_missing=True,
            block_size=65536,
            write_buffer_size=268435456,
            max_open_files=_MAX_OPEN_FILES,
        )
        self._batch = self._db.write_batch()
        self._waiting = 0

    def put(self, key: bytes, value: bytes) -> None:
        self._batch.put(key, value)
        self._waiting += 1
        if self._waiting == _TRANSACTION:
            self._commit()

    def finish(self) -> None:
        self._commit()

    def close(self) -> None:
        self._db.close()

    def _commit(self) -> None:
        self._batch.write()
        self._batch.clear()
        self._waiting = 0


@register("leveldb")
class LevelDBSource(Database):
    """An open LevelDB; ``path`` is its folder."""

    file, called = "CURRENT", "a LevelDB"
    writer = LevelDBWriter
    counts_slowly = True

    def __init__(self, path: str):
        super().__init__(path)
        file_of(path, LevelDBSource)
        with _errors_of(path):
            self._files = check_files(path)
            try:
                self._view = _View(path)
            except plyvel.CorruptionError as error:
                where = self._files.wrong_when_opened()
                raise damage(path, f"in its {where}: {_words(error, path)}") from error
        self._close = weakref.finalize(self, self._view.close)
        self._count: int | None = None
        self.cursor()  # has records

    @property
    def count(self) -> int:
        if self._count is None:
            self._count = sum(1 for _ in self.items())
        return self._count

    def cursor(self) -> LevelDBCursor:
        with self.errors_from(b""):
            return LevelDBCursor(self, self._view.iterator())

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        with self.errors_from(b""):
            iterator = self._view.iterator()
            iterator.seek_to_first()
            while iterator.valid():
                yield iterator.item()
                iterator.next()

    def keys(self) -> Iterator[bytes]:
        return (key for key, _ in self.items())

    def fetch(self, keys: list[bytes]) -> Records:
        with self.errors_from(b""):
            return Records.joined([self._view.value(key) for key in keys])

    def close(self) -> None:
        self._close()

    @contextlib.contextmanager
    def errors_from(self, key: bytes) -> Iterator[None]:
        """Raise `DataError` for LevelDB's errors; damage is looked for from ``key`` on."""
        with _errors_of(self.path):
            try:
                yield
            except plyvel.CorruptionError as error:
                last = self._last_before_damage(key) or self._last_before_damage(b"")
                place = "at its first record"
                if last:
                    place = f"behind the record with key '{last.decode(errors='backslashreplace')}'"
                where = self._files.tables_at(last)
                words = _words(error, self.path)
                raise damage(self.path, f"{place}, in its {where}: {words}") from error

    def _last_before_damage(self, key: bytes) -> bytes:
        """Return the last key, from this one on, before what cannot be read; empty without that."""
        last = b""
        try:
            iterator = self._view.iterator()
            iterator.seek(key)
            while iterator.valid():
                last = iterator.key()
                iterator.next()
        except plyvel.CorruptionError:
            return last
        return b""


class LevelDBCursor(Cursor):
    """A place in a LevelDB."""

    def __init__(self, source: LevelDBSource, iterator: plyvel.RawIterator):
        super().__init__()
        self._source = source  # keeps the database open
        self._iterator = iterator
        iterator.seek_to_first()
        if not iterator.valid():
            raise DataError(f"LevelDB '{source.path}' is empty: it holds no records")

    def seek(self, position: int) -> None:
        with self._source.errors_from(self._iterator.key()):
            distance = position - self.position
            if distance < 0:
                self._iterator.seek_to_first()
                distance = position
            if distance >= _WORTH_COUNTING:
                distance %= self._source.count
            self._skip(distance)
        self.position = position

    def read(self, count: int, step: int = 1) -> Records:
        values = []
        with self._source.errors_from(self._iterator.key()):
            for _ in range(count):
                values.append(self._iterator.value())
                self._skip(step)
        self.position += count * step
        return Records.joined(values)

    def key(self) -> bytes:
        return self._iterator.key()

    def _skip(self, records: int) -> None:
        iterator = self._iterator
        for _ in range(records):
            iterator.next()
            if not iterator.valid():
                iterator.seek_to_first()


@contextlib.contextmanager
def _errors_of(path: str) -> Iterator[None]:
    try:
        yield
    except plyvel.Error as error:
        raise DataError(f"LevelDB '{path}' cannot be read: {_words(error, path)}") from error
    except OSError as error:
        where = f": {os.path.basename(error.filename)}" if error.filename else ""
        raise DataError(f"LevelDB '{path}' cannot be read{where}: {error.strerror}") from error


def _words(error: plyvel.Error, path: str) -> str:
    """Return LevelDB's words, which come as bytes and with the view's paths."""
    words = error.args[0] if error.args else ""
    text = words.decode(errors="replace") if isinstance(words, bytes) else str(words)
    return re.sub(rf"\S*{_VIEW}[^/]*", path, text)
