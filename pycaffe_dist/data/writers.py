"""Writes databases of records atomically."""

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
from collections.abc import Iterator

from pycaffe_dist.data.sources import Writer, database_class, file_of
from pycaffe_dist.errors import DataError

# The space that a writer cannot use on a disk that it has filled.
_DISK_IS_FULL = 1 << 18


def check_new(path: str, backend: str, replace: bool = False) -> None:
    """Raise `DataError` unless a database of this kind can be created at ``path``.

    With ``replace`` there may be one of the same kind.
    """
    _writer_class(backend)
    if os.path.lexists(path) and replace:
        file_of(path, database_class(backend))
    elif os.path.lexists(path):
        raise DataError(f"'{path}' exists already; remove it first, or choose another name")
    _check_parent(path)


def check_new_file(path: str) -> None:
    """Raise `DataError` if ``path`` cannot be a file; the file may exist."""
    if os.path.isdir(path):
        raise DataError(f"cannot create '{path}': it is a folder")
    _check_parent(path)


def write_file(path: str, data: bytes, kind: str) -> None:
    """Write a file atomically; errors call it ``kind``.

    An existing file is replaced.  Raises `DataError` when this is not possible.
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
def create_database(path: str, backend: str, replace: bool = False) -> Iterator[Writer]:
    """Create the database ``path`` ("lmdb", "leveldb" …), filled by the body of a ``with``.

    It gets its name when the body has ended; after an exception, SIGTERM or SIGHUP nothing remains.
    With ``replace`` it then takes the place of another database.  Raises `DataError` when ``path``
    exists already or cannot be written.
    """
    check_new(path, backend, replace)
    writer_class = _writer_class(backend)
    errors: tuple[type[Exception], ...] = (OSError, *writer_class.errors)
    folder = ""
    try:
        with unwinding_when_killed():
            folder = tempfile.mkdtemp(prefix=f".{os.path.basename(path)}.", dir=_parent(path))
            writer = writer_class(folder)
            try:
                yield writer
                writer.finish()
            finally:
                writer.close()
            os.chmod(folder, 0o755)
            if replace and os.path.lexists(path):
                file_of(path, database_class(backend))
                shutil.rmtree(path)
            _rename(folder, path)
    except errors as error:
        raise DataError(f"cannot write database '{path}': {_reason(error, path)}") from error
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def unwinding_when_killed() -> Iterator[None]:
    """Let SIGTERM and SIGHUP, unless they have handlers, end the process by an exception."""
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


def _writer_class(backend: str) -> type[Writer]:
    writer = database_class(backend).writer
    if writer is None:
        raise DataError(f"databases of kind '{backend}' can be read, but not created")
    return writer


def _check_parent(path: str) -> None:
    if not os.path.isdir(_parent(path)):
        raise DataError(f"cannot create '{path}': there is no folder '{_parent(path)}'")


def _reason(error: Exception, path: str) -> str:
    """Return the reason, in the system's words if the library's do not help."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    with contextlib.suppress(OSError):
        disk = os.statvfs(_parent(path))
        if disk.f_bavail * disk.f_frsize < _DISK_IS_FULL:
            return os.strerror(errno.ENOSPC)
    words = error.args[0] if error.args else ""
    return words.decode(errors="replace") if isinstance(words, bytes) else str(error)


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
