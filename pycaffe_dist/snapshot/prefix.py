"""Prevents two trainings from writing snapshots with one prefix, by a lock on a file."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from pathlib import Path
from typing import NamedTuple

from pycaffe_dist import atomic

# A process that was killed may take a moment to end.
PATIENCE_SECONDS = 3.0
_POLL_SECONDS = 0.05
# How often the last owner may remove the file just before it is locked here.
_ATTEMPTS = 100
_OWNER_BYTES = 4096


class Owner(NamedTuple):
    """A text about the process that holds a prefix, and the launch that it belongs to."""

    words: str
    launch: str


class Hold:
    """This process's lock on a snapshot prefix; it ends with the last reference to this object.

    ``owner`` is another process that holds the prefix, if there is one: then this object holds
    nothing.  On file systems without locks, or in read-only folders, the prefix counts as held.
    Solvers of one process share the lock: ``turn`` lets one of them write at a time, and ``newest``
    is the time of the newest snapshot, once it is known.
    """

    def __init__(self, prefix: str, owner: Owner | None, file: int | None):
        self.prefix = prefix
        self.owner = owner
        self.turn = threading.Lock()
        self.newest: float | None = None
        if file is not None:
            weakref.finalize(self, _release, path_of(prefix), file, os.getpid())


_holds: weakref.WeakValueDictionary[tuple[int, str], Hold] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def path_of(prefix: str) -> Path:
    """Return the path of a prefix's lock."""
    return Path(f"{prefix}_iter.lock")


def take(prefix: str, launch: str = "", patience: float = 0.0) -> Hold:
    """Lock a snapshot prefix; if another process has it, return a Hold that names this owner.

    Waits up to ``patience`` seconds for the other process to release it.  After that, an owner of
    the same ``launch`` is ignored: it is an earlier attempt that does not end.  Incomplete files of
    killed processes are removed.
    """
    place = os.getpid(), os.path.realpath(prefix)
    deadline = time.monotonic() + patience
    while True:
        with _opening:
            hold = _holds.get(place) or _try(prefix, launch)
            if hold.owner is None:
                _holds[place] = hold
                return hold
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    return Hold(prefix, None, None) if launch and hold.owner.launch == launch else hold


def _try(prefix: str, launch: str) -> Hold:
    path = path_of(prefix)
    file = _lock(path)
    if isinstance(file, Owner):
        return Hold(prefix, file, None)
    if file is not None:
        _sign(file, launch)
    with contextlib.suppress(OSError):
        atomic.remove_leftovers(path.parent, f"{Path(prefix).name}_iter_")
    return Hold(prefix, None, file)


def _lock(path: Path) -> int | Owner | None:
    """Return the open, locked file, or the owner of its lock, or None without locks."""
    for _ in range(_ATTEMPTS):
        file = _lock_once(path)
        if not isinstance(file, int) or _is_at(path, file):
            return file
        os.close(file)  # its last owner has just removed it
    return None


def _lock_once(path: Path) -> int | Owner | None:
    # lockf: forked processes, which may live longer than this one, do not inherit its locks.
    try:
        import fcntl

        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except (ImportError, OSError):
        return None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        with contextlib.suppress(OSError):
            return _read_owner(file)
        return Owner("another process", "")
    except OSError:
        os.close(file)
        return None
    return file


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except OSError:
        return False


def _sign(file: int, launch: str) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    line = f"process {os.getpid()} on {socket.gethostname()} since {since}\n{launch}\n"
    with contextlib.suppress(OSError):  # a full disk: the lock holds without a name
        os.ftruncate(file, 0)
        os.pwrite(file, line.encode(), 0)


def _read_owner(file: int) -> Owner:
    try:
        words, _, launch = os.pread(file, _OWNER_BYTES, 0).decode(errors="replace").partition("\n")
    finally:
        os.close(file)
    return Owner(words or "another process", launch.strip())


def _release(path: Path, file: int, process: int) -> None:
    if os.getpid() != process:  # forked while the prefix was held
        return
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        os.close(file)
