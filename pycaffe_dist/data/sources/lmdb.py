"""LMDB databases, read straight from the mapped file.

The B+tree is walked by compiled code here (`kernels.lmdb_tree`) instead of by liblmdb.  liblmdb
trusts the file: a truncated copy makes it read past the end of the map, which kills the process;
here every page is checked before it is used.  And a loop in Python over the records costs some
5 µs each under the interpreter lock, which the training thread then waits for; here a whole batch
is one call that does not hold it.

Only what databases of records need is understood: one unnamed database without duplicate keys,
in LMDB 0.9's format (data version 1) of a 64-bit little-endian machine.  The file must not be
written to while it is read.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass

import numpy as np

from pycaffe_dist.data.sources import Cursor, Records, Source
from pycaffe_dist.errors import DataError
from pycaffe_dist.kernels import lmdb_tree

MAGIC = 0xBEEFC0DE
DATA_VERSION = 1
_DUPSORT = 0x04
_META = struct.Struct("<IIQQ" + 2 * "IHHQQQQQ" + "QQ")
_NO_ROOT = 2**64 - 1

_PROBLEMS = {
    lmdb_tree.BAD_PAGE: "page {page} is outside of the file or not what its parent page says",
    lmdb_tree.BAD_NODE: "page {page} has an entry that lies outside of it",
    lmdb_tree.BAD_VALUE: "page {page} refers to a value that lies outside of the file",
    lmdb_tree.UNSUPPORTED: "page {page} holds a named sub-database or duplicate keys",
    lmdb_tree.BAD_COUNT: "the number of records found is not the number it is said to have",
}


@dataclass(frozen=True)
class _Tree:
    """Where the tree of the newest committed transaction is, from the file's meta pages."""

    page_size: int
    depth: int
    root: int
    count: int
    end: int  # bytes up to the end of the last page in use
    duplicates: bool
    transaction: int


class LmdbSource(Source):
    """An open LMDB; ``path`` is its folder."""

    def __init__(self, path: str, data: np.ndarray, tree: _Tree):
        super().__init__(path)
        self._data = data
        self._tree = tree

    @property
    def count(self) -> int:
        return self._tree.count

    def cursor(self) -> LmdbCursor:
        return LmdbCursor(self.path, self._data, self._tree)

    def close(self) -> None:
        """Do nothing: the file is unmapped with the last cursor and records that refer to it."""


class LmdbCursor(Cursor):
    """A place in an LMDB."""

    def __init__(self, path: str, data: np.ndarray, tree: _Tree):
        super().__init__()
        self._path = path
        self._data = data
        self._tree = tree
        self._state = np.zeros(lmdb_tree.STATE_SIZE, np.int64)
        self._check(lmdb_tree.rewind(data, tree.page_size, tree.depth, tree.root, self._state))

    def seek(self, position: int) -> None:
        tree, state = self._tree, self._state
        if position < self.position:
            self._check(lmdb_tree.rewind(self._data, tree.page_size, tree.depth, tree.root, state))
            self.position = 0
        if position > self.position:
            distance = (position - self.position) % tree.count
            self._check(lmdb_tree.skip(self._data, *self._geometry(), state, distance))
            self.position = position

    def read(self, count: int, step: int = 1) -> Records:
        values, keys = np.empty((count, 2), np.int64), np.empty((count, 2), np.int64)
        self._check(lmdb_tree.read(self._data, *self._geometry(), self._state, step, values, keys))
        self.position += count * step
        return Records(self._data, values, keys)

    def _geometry(self) -> tuple[int, int, int, int]:
        tree = self._tree
        return tree.page_size, tree.depth, tree.root, tree.count

    def _check(self, status: int) -> None:
        if status != lmdb_tree.OK:
            problem = _PROBLEMS[status].format(page=self._state[lmdb_tree.PAGE_NUMBER])
            raise DataError(f"LMDB '{self._path}' is damaged: {problem}")


def open_for_reading(path: str) -> LmdbSource:
    """Map the LMDB in folder ``path``; raises `DataError` unless it holds readable records."""
    file = _data_file(path)
    try:
        with open(file, "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            tree = _newest_tree(path, handle.read(1 << 17), size)
            if tree.count == 0:
                raise DataError(f"LMDB '{path}' is empty: it holds no records")
            mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DataError(f"cannot read LMDB file '{file}': {error.strerror}") from error
    whole_pages = size // tree.page_size * tree.page_size
    source = LmdbSource(path, np.frombuffer(mapped, np.uint8)[:whole_pages], tree)
    if tree.end > size:
        # Pages behind the last record's may legitimately never have been written.
        try:
            _walk_once(source)
        except DataError as error:
            raise DataError(
                f"LMDB '{path}' is truncated: '{file}' should have {tree.end} bytes "
                f"but has {size}; copy or create it again"
            ) from error
    return source


def _walk_once(source: LmdbSource) -> None:
    cursor = source.cursor()
    while cursor.position < source.count:
        cursor.read(4096)


def _data_file(path: str) -> str:
    file = os.path.join(path, "data.mdb")
    if os.path.isfile(file):
        return file
    if not os.path.exists(path):
        raise DataError(f"LMDB '{path}' does not exist (looked in '{os.getcwd()}')")
    if not os.path.isdir(path):
        raise DataError(f"'{path}' is not an LMDB: expected a folder with data.mdb, found a file")
    hint = ""
    if os.path.exists(os.path.join(path, "CURRENT")):
        hint = "; it looks like a LevelDB (backend: LEVELDB)"
    raise DataError(f"'{path}' is not an LMDB: there is no data.mdb in it{hint}")


def _newest_tree(path: str, head: bytes, size: int) -> _Tree:
    """Read both meta pages (the file's first two pages) and return the newer one's tree."""
    first = _meta(path, head, 0, size)
    if size < 2 * first.page_size:
        raise DataError(
            f"LMDB '{path}' is truncated: data.mdb has {size} bytes, less than its two meta pages"
        )
    tree = max(first, _meta(path, head, first.page_size, size), key=lambda t: t.transaction)
    if tree.duplicates:
        raise DataError(f"LMDB '{path}' has duplicate keys (MDB_DUPSORT), which is not supported")
    if tree.count and not 1 <= tree.depth <= lmdb_tree.MAX_DEPTH:
        raise DataError(f"LMDB '{path}' is damaged: its tree is said to have {tree.depth} levels")
    return tree


def _meta(path: str, head: bytes, offset: int, size: int) -> _Tree:
    if len(head) < offset + lmdb_tree.PAGE_HEADER + _META.size:
        raise DataError(f"'{path}' is not an LMDB: its data.mdb has only {size} bytes")
    fields = _META.unpack_from(head, offset + lmdb_tree.PAGE_HEADER)
    magic, version, page_size = fields[0], fields[1], fields[4]
    if magic != MAGIC:
        raise DataError(
            f"'{path}' is not an LMDB of a 64-bit little-endian machine: its data.mdb should hold "
            f"the number 0x{MAGIC:X} at byte {offset + lmdb_tree.PAGE_HEADER}, found 0x{magic:X}"
        )
    if version != DATA_VERSION:
        raise DataError(
            f"LMDB '{path}' has data format {version}; only format {DATA_VERSION} (LMDB 0.9) "
            "can be read"
        )
    if page_size not in (1 << bits for bits in range(8, 17)):
        raise DataError(f"LMDB '{path}' is damaged: its page size is said to be {page_size}")
    flags, depth, entries, root = fields[13], fields[14], fields[18], fields[19]
    return _Tree(
        page_size=page_size,
        depth=depth,
        root=root if root != _NO_ROOT and root < 2**48 else -1,
        count=entries,
        end=(fields[20] + 1) * page_size,
        duplicates=bool(flags & _DUPSORT),
        transaction=fields[21],
    )
