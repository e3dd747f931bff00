"""An LMDB that is open for reading: its lock, and one snapshot that all reading sees.

A writer of another process leaves the pages of a snapshot alone as long as a transaction of it is
listed in lock.mdb.  Pages are checked (`lmdb_pages`) in the snapshot that is read, not in a newer
one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from weakref import WeakValueDictionary, finalize

import lmdb
import numpy as np

from pycaffe_dist.data.mapped_files import guard, shrunken
from pycaffe_dist.data.sources import Records
from pycaffe_dist.data.sources.lmdb_pages import PageCheck
from pycaffe_dist.errors import DataError
from pycaffe_dist.log import logger

# Values of this size on average are used where they lie; smaller ones are sooner copied.
_LEFT_IN_PLACE = 4096
# The size of the list of readers, all processes together; LMDB's own default is 126.
_MOST_READERS = 1024
_TRIES = 100
_CLOSING_SECONDS = 2.0
# LMDB's list of readers is memory that processes share: hosts do not see each other's entries.
_NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"}
    | {"orangefs", "pvfs2", "smb3", "smbfs"}
)


class Reading:
    """A transaction of an environment's snapshot; who uses it holds ``turn`` meanwhile."""

    def __init__(self, transaction: lmdb.Transaction):
        self.transaction = transaction
        self.turn = threading.Lock()


class Environment:
    """An LMDB that is open for reading; closed when nothing refers to it any more.

    ``count`` is its number of records; only those that ``pages`` has checked may be read.
    """

    def __init__(self, path: str, file: str):
        self._path, self._file = path, file
        PageCheck(path, file).close()  # liblmdb trusts what this has not refused
        reason = _why_not_locked(path, file)
        if not reason:
            try:
                self._open(locked=True)
            except lmdb.Error as error:
                if _is_open_already(error):
                    raise
                reason = str(error).removeprefix(f"{path}: ")
        if reason:
            logger.info("LMDB '%s' is read without a lock (%s)", path, reason)
            self._open(locked=False)
        self.count: int = self._first.transaction.stat()["entries"]
        end_guard = guard(self.pages.descriptor, self.pages.bytes, str(self._overwritten()))
        finalize(self, _close, end_guard, self.pages)

    def _open(self, locked: bool) -> None:
        self._locked = locked
        self._lmdb = lmdb.open(
            self._path,
            readonly=True,
            create=False,
            lock=locked,
            max_readers=_MOST_READERS,
            mode=0o666,  # of lock.mdb, less the umask
        )
        try:
            self._lmdb.reader_check()  # removes processes that were killed
            self._first, self.pages = self._snapshot()
        except BaseException:
            self._lmdb.close()
            raise

    def _snapshot(self) -> tuple[Reading, PageCheck]:
        """Return a transaction and the pages that it sees, unless somebody writes in between."""
        for _ in range(_TRIES):
            transaction = self._lmdb.begin(buffers=True)
            pages = PageCheck(self._path, self._file)
            if pages.transaction == transaction.id():
                return Reading(transaction), pages
            pages.close()
            transaction.abort()
        raise DataError(f"LMDB '{self._path}' cannot be read: another program writes to it")

    def reading(self) -> Reading:
        """Return a transaction that nobody else uses, or, if the snapshot is an old one, shared.

        Raises `DataError`.
        """
        self._check_unchanged()
        try:
            transaction = self._lmdb.begin(buffers=True)
        except (lmdb.ReadersFullError, lmdb.MapResizedError):
            return self._first
        if transaction.id() == self._first.transaction.id():
            return Reading(transaction)
        transaction.abort()
        return self._first

    @contextlib.contextmanager
    def turn(self, reading: Reading, number: int) -> Iterator[None]:
        """Use a transaction; raise `DataError` for what is found to be damaged meanwhile.

        Damaged pages that a library finds which looks at those of values are looked for from
        record ``number`` on.
        """
        with reading.turn:
            self._check_unchanged()
            try:
                yield
            except lmdb.CorruptedError:
                for begin in (number, 0):
                    with contextlib.closing(PageCheck(self._path, self._file, begin)) as check:
                        check.upto(self.count)
                raise
            self._check_unchanged()

    def _check_unchanged(self) -> None:
        """Raise `DataError` if what is left of the file is not the snapshot any more."""
        if shrunken(self.pages.descriptor, self.pages.bytes):
            raise self._overwritten()
        later = self._lmdb.info()["last_txnid"] - self.pages.transaction
        if later < 0:
            raise self._overwritten()
        # A writer that does not know of this reader leaves the snapshot alone in the first two
        # transactions after it.
        if later > 1 and not self._locked:
            raise DataError(
                f"LMDB '{self._path}' has been written to while it was read without a lock: "
                "copy it, or stop the program that writes"
            )

    def _overwritten(self) -> DataError:
        return DataError(f"LMDB '{self._path}' was cut short or overwritten while it was read")

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

    def __init__(self, environment: Environment, address: int, size: int):
        self._environment = environment
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, True),
        }


_opened: WeakValueDictionary[str, Environment] = WeakValueDictionary()
_opening = threading.Lock()


def environment(path: str, file: str) -> Environment:
    """Return the one environment of ``path``: the library opens a database once per process.

    Raises `DataError`, OSError or the library's errors.
    """
    place = os.path.realpath(path)
    with _opening:
        found = _opened.get(place)
        deadline = time.monotonic() + _CLOSING_SECONDS
        while found is None:
            try:
                found = _opened[place] = Environment(path, file)
            except lmdb.Error as error:
                # One that nothing refers to any more may be about to be closed by another thread.
                if not _is_open_already(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.001)
        return found


def _close(end_guard: Callable[[], None], pages: PageCheck) -> None:
    end_guard()
    pages.close()


def _is_open_already(error: lmdb.Error) -> bool:
    return "already open" in str(error)


def _why_not_locked(path: str, file: str) -> str:
    """Return why a database must not be opened with its lock; empty if it may be."""
    kind = _file_system(path)
    if kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse."):
        return f"it is on a file system of type {kind}"
    if os.path.exists(os.path.join(path, "lock.mdb")):
        return ""
    state = os.stat(file)
    if not state.st_mode & 0o222:
        return "nobody may write to it"
    # The owner could not write to the database beside another user's lock.mdb.
    if state.st_uid != os.geteuid():
        return "it belongs to another user and has no lock.mdb"
    return ""


def _file_system(path: str) -> str:
    """Return the type of the file system that a folder is on; empty where Linux does not tell."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", errors="replace") as mounts:
        for line in mounts:
            fields, _, kind = line.partition(" - ")
            if fields.split()[2] == number:
                return kind.split()[0]
    return ""
