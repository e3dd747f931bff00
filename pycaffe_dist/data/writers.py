"""Writing databases of records, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator

from pycaffe_dist.data.sources import BACKENDS
from pycaffe_dist.errors import DataError, did_you_mean

# Records per transaction, as in Caffe's tools.
_TRANSACTION = 1000
_FIRST_MAP_SIZE = 1 << 26
# What a writer could not use of a disk that it has filled.
_DISK_IS_FULL = 1 << 18


class Writer(ABC):
    """A database that is being written."""

    @abstractmethod
    def put(self, key: bytes, value: bytes) -> None:
        """Add a record; a second one with the same key replaces the first."""

    @abstractmethod
    def finish(self) -> None:
        """Write what is still to be written."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the files; without `finish` records may be missing."""


class _LmdbWriter(Writer):
    def __init__(self, folder: str):
        import lmdb

        self._full = lmdb.MapFullError
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
            except self._full:
                self._size *= 2
                self._env.set_mapsize(self._size)
            else:
                self._waiting.clear()
                return


class _LevelDBWriter(Writer):
    def __init__(self, folder: str):
        import plyvel

        # As Caffe creates its databases.
        self._db = plyvel.DB(
            folder,
            create_if_missing=True,
            block_size=65536,
            write_buffer_size=268435456,
            max_open_files=100,
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


def check_new(path: str, backend: str) -> None:
    """Raise `DataError` unless a database of this kind can be created at ``path``."""
    if backend not in BACKENDS:
        known = f"; known are {', '.join(BACKENDS)}"
        raise DataError(
            f"unknown database backend '{backend}'{did_you_mean(backend, BACKENDS) or known}"
        )
    if os.path.lexists(path):
        raise DataError(f"'{path}' exists already; remove it first, or choose another name")
    _check_parent(path)


def check_new_file(path: str) -> None:
    """Raise `DataError` unless a file can be at ``path``, whether there is one or not."""
    if os.path.isdir(path):
        raise DataError(f"cannot create '{path}': it is a folder")
    _check_parent(path)


def write_file(path: str, data: bytes, kind: str) -> None:
    """Write a file, named ``kind`` in errors; it appears whole or not at all.

    An existing file is replaced in one step.  Raises `DataError` when that is not possible.
    """
    folder, name = os.path.split(os.path.abspath(path))
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            with open(temporary, "xb") as file:
                file.write(data)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(temporary)
    except OSError as error:
        raise DataError(f"cannot write {kind} '{path}': {error.strerror}") from error


@contextlib.contextmanager
def create_database(path: str, backend: str) -> Iterator[Writer]:
    """Create the database ``path`` ("lmdb" or "leveldb"), filled by the body of a ``with``.

    It appears under its name when the body has ended; an exception, SIGTERM or SIGHUP leaves
    nothing behind.  Raises `DataError` when something is there already or it cannot be written.
    """
    check_new(path, backend)
    import lmdb
    import plyvel

    folder = ""
    try:
        with unwinding_when_killed():
            folder = tempfile.mkdtemp(prefix=f".{os.path.basename(path)}.", dir=_parent(path))
            writer = _LmdbWriter(folder) if backend == "lmdb" else _LevelDBWriter(folder)
            try:
                yield writer
                writer.finish()
            finally:
                writer.close()
            os.chmod(folder, 0o755)
            _rename(folder, path)
    except (OSError, lmdb.Error, plyvel.Error) as error:
        raise DataError(f"cannot write database '{path}': {_reason(error, path)}") from error
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def unwinding_when_killed() -> Iterator[None]:
    """Let SIGTERM and SIGHUP, where nobody else handles them, end the process by an exception."""
    numbers = []
    if threading.current_thread() is threading.main_thread():
        kills = (signal.SIGTERM, signal.SIGHUP)
        numbers = [number for number in kills if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _check_parent(path: str) -> None:
    if not os.path.isdir(_parent(path)):
        raise DataError(f"cannot create '{path}': there is no folder '{_parent(path)}'")


def _reason(error: Exception, path: str) -> str:
    """Return what went wrong, in the system's words where the library's are no help."""
    import plyvel

    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    with contextlib.suppress(OSError):
        disk = os.statvfs(_parent(path))
        if disk.f_bavail * disk.f_frsize < _DISK_IS_FULL:
            return os.strerror(errno.ENOSPC)
    words = error.args[0] if isinstance(error, plyvel.Error) and error.args else str(error)
    return words.decode(errors="replace") if isinstance(words, bytes) else words


def _rename(folder: str, path: str) -> None:
    """Give a finished database its name, unless another writer was faster."""
    try:
        os.rename(folder, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            message = f"cannot create '{path}': it has appeared in the meantime"
            raise DataError(message) from error
        raise


def _parent(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))
