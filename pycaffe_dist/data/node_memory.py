"""Memory shared by the processes of a node: one of them fills it, the others map it.

The memory has no name in any file system: the process that filled it holds a file that exists only
in memory, and the others open it through /proc.  The memory disappears with the processes, however
they end.  A killed process leaves its note, the address for the others, until the next process
removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import mmap
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from typing import IO

import numpy as np

from pycaffe_dist.errors import DataError
from pycaffe_dist.log import logger


class NodeMemory:
    """Bytes written by ``fill`` to a file, in this process or in another one of the node.

    Processes with the same ``identity`` share the bytes; the first process fills them while the
    others wait.  If this fails, the next one tries.  ``bytes`` is a read-only uint8 array.
    """

    def __init__(self, identity: str, fill: Callable[[IO[bytes]], None]):
        if not hasattr(os, "memfd_create"):
            raise DataError("sharing memory among the processes of a node needs Linux")
        tag = hashlib.sha256(f"{socket.gethostname()}\0{identity}".encode()).hexdigest()[:16]
        self._name = f"pcaffe-{tag}"
        folder = _folder_of_notes()
        self._note = os.path.join(folder, self._name)
        self._filled = False
        _remove_dead_notes(folder)
        with _locked(self._note) as note:
            found = self._find(note.read())
            self._file = self._make(fill, note) if found is None else found
        memory = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self.bytes = np.frombuffer(memory, np.uint8)

    def close(self) -> None:
        """Release the memory; it is freed when all processes have done so, and all its arrays."""
        if self._filled and not self._file.closed:
            with _locked(self._note) as note:
                if note.read() == self._address():
                    os.unlink(self._note)
        self._file.close()

    def _address(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def _find(self, address: str) -> IO[bytes] | None:
        """Open the memory at ``address``, unless its holder has released it."""
        with contextlib.suppress(OSError):
            if address and os.readlink(address).startswith(f"/memfd:{self._name} "):
                return open(address, "rb")
        return None

    def _make(self, fill: Callable[[IO[bytes]], None], note: IO[str]) -> IO[bytes]:
        self._file = os.fdopen(os.memfd_create(self._name), "w+b", buffering=1 << 20)
        try:
            fill(self._file)
            self._file.flush()
            note.seek(0)
            note.truncate()
            note.write(self._address())
            note.flush()
        except BaseException as error:
            os.unlink(self._note)
            with contextlib.suppress(OSError):
                self._file.close()
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise DataError("the machine has no memory left to cache data in") from error
            raise
        self._filled = True
        return self._file


def _folder_of_notes() -> str:
    """Return a folder that only this user can read or write; raises `DataError`.

    Processes trust the notes: they read the memory that a note names, and wait for its lock.
    """
    folder = os.path.join(tempfile.gettempdir(), f"pcaffe-{os.geteuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError as error:
        raise DataError(f"cannot create the folder '{folder}': {error.strerror}") from error
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not own or found.st_mode & 0o077:
        raise DataError(
            f"'{folder}' should be a folder of this user alone (mode 0700): remove it, or set "
            "TMPDIR to another folder"
        )
    return folder


def _remove_dead_notes(folder: str) -> None:
    """Remove notes whose memory no longer exists, for all identities."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for path in glob.glob(os.path.join(glob.escape(folder), "pcaffe-*")):
        # Processes that fill memory or look for it hold the lock.
        with contextlib.suppress(OSError), open(os.open(path, flags)) as note:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            address = note.read()
            if not (address and os.path.exists(address)) and _same_file(note.fileno(), path):
                os.unlink(path)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[IO[str]]:
    """Open the file ``path``, which may be new, and hold its lock."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("Waiting for another process of this machine that is caching data")
                fcntl.flock(file, fcntl.LOCK_EX)
            # Its holder may have removed it.
            if _same_file(file.fileno(), path):
                yield file
                return


def _same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
