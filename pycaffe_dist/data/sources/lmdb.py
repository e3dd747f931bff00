"""LMDB databases, read straight from the mapped file.

The B+tree is walked by compiled code here instead of by liblmdb, for two reasons.  liblmdb's
binding takes the interpreter lock for every record, and a reader thread that competes with a
training thread for that lock gets it rarely: whole batches in one call that holds no lock do not
care.  And liblmdb trusts the file: a truncated copy makes it read past the end of the map, which
kills the process; here every page is checked before it is used.

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
from pycaffe_dist.kernels.compiling import jit

# Format constants, from the LMDB 0.9 file format.
MAGIC = 0xBEEFC0DE
DATA_VERSION = 1
PAGE_HEADER = 16
NODE_HEADER = 8
BRANCH, LEAF, OVERFLOW, META = 0x01, 0x02, 0x04, 0x08  # page flags
BIG_VALUE, SUB_DATABASE, DUPLICATES = 0x01, 0x02, 0x04  # node flags
_DUPSORT = 0x04  # database flag
_META = struct.Struct("<IIQQ" + 2 * "IHHQQQQQ" + "QQ")
_NO_ROOT = 2**64 - 1
MAX_DEPTH = 32  # liblmdb's own limit on cursor stacks

# The walker's state: scalars, then per level of the tree a page's byte offset, its number of
# entries and the current entry.
ORDINAL, BAD_PAGE_NUMBER, LEVELS = 0, 1, 2
PAGE_OFFSET, ENTRIES, ENTRY = 0, 1, 2

# What the walker returns.
OK, END, BAD_PAGE, BAD_NODE, BAD_VALUE, UNSUPPORTED, BAD_COUNT = range(7)
_PROBLEMS = {
    BAD_PAGE: "page {page} lies outside of the file or is not what its parent page says",
    BAD_NODE: "page {page} holds an entry that lies outside of it",
    BAD_VALUE: "page {page} refers to a value that lies outside of the file",
    UNSUPPORTED: "page {page} holds a named sub-database or duplicate keys",
    BAD_COUNT: "the number of records found is not the number it is said to have",
}


@jit
def _u16(data, at):
    return np.int64(data[at]) | np.int64(data[at + 1]) << 8


@jit
def _u48(data, at):
    return _u16(data, at) | _u16(data, at + 2) << 16 | _u16(data, at + 4) << 32


@jit
def _page_offset(data, page_size, number, kind):
    """Return where a page begins, or -1 when it is not a page of this kind within the file."""
    # Division, because a damaged page number times the page size may overflow.
    if number < 0 or number >= data.size // page_size:
        return -1
    offset = number * page_size
    if _u48(data, offset) != number or _u16(data, offset + 10) & (BRANCH | LEAF | OVERFLOW) != kind:
        return -1
    return offset


@jit
def _node(data, page_size, page, entry, entries):
    """Return where an entry of a page begins, or -1 when that is not inside the page's heap."""
    at = _u16(data, page + PAGE_HEADER + 2 * entry)
    if at < PAGE_HEADER + 2 * entries or at + NODE_HEADER > page_size:
        return -1
    return page + at


@jit
def _enter(data, page_size, depth, state, level, number):
    """Move to the first record below page ``number``, which belongs at ``level``."""
    while True:
        here = LEVELS + 3 * level
        leaf = level == depth - 1
        page = _page_offset(data, page_size, number, LEAF if leaf else BRANCH)
        state[BAD_PAGE_NUMBER] = number
        if page < 0:
            return BAD_PAGE
        lower = _u16(data, page + 12)
        entries = (lower - PAGE_HEADER) >> 1
        if entries < 1 or lower > page_size:
            return BAD_NODE
        state[here + PAGE_OFFSET], state[here + ENTRIES], state[here + ENTRY] = page, entries, 0
        if leaf:
            return OK
        node = _node(data, page_size, page, 0, entries)
        if node < 0:
            return BAD_NODE
        number = _u48(data, node)
        level += 1


@jit
def rewind(data, page_size, depth, root, state):
    """Move to the first record; returns a status."""
    state[ORDINAL] = 0
    return _enter(data, page_size, depth, state, 0, root)


@jit
def _next_leaf(data, page_size, depth, state):
    """Move to the first record of the next leaf page; returns a status, END after the last."""
    level = depth - 2
    while level >= 0:
        here = LEVELS + 3 * level
        entry = state[here + ENTRY] + 1
        if entry < state[here + ENTRIES]:
            state[here + ENTRY] = entry
            page = state[here + PAGE_OFFSET]
            node = _node(data, page_size, page, entry, state[here + ENTRIES])
            if node < 0:
                state[BAD_PAGE_NUMBER] = page // page_size
                return BAD_NODE
            return _enter(data, page_size, depth, state, level + 1, _u48(data, node))
        level -= 1
    return END


@jit
def skip(data, page_size, depth, root, count, state, n):
    """Move ``n`` records on, round the end of the data set where need be; returns a status."""
    leaf = LEVELS + 3 * (depth - 1)
    if n >= count:
        n %= count
    while n > 0:
        left = state[leaf + ENTRIES] - state[leaf + ENTRY]
        if n < left:
            state[leaf + ENTRY] += n
            state[ORDINAL] += n
            return OK
        n -= left
        state[ORDINAL] += left
        status = _next_leaf(data, page_size, depth, state)
        if status == END:
            if state[ORDINAL] != count:
                return BAD_COUNT
            status = rewind(data, page_size, depth, root, state)
        if status != OK:
            return status
    return OK


@jit
def _locate(data, page_size, depth, state, value, key):
    """Write where the current record's value and key are; returns a status."""
    leaf = LEVELS + 3 * (depth - 1)
    page = state[leaf + PAGE_OFFSET]
    state[BAD_PAGE_NUMBER] = page // page_size
    node = _node(data, page_size, page, state[leaf + ENTRY], state[leaf + ENTRIES])
    if node < 0:
        return BAD_NODE
    size = _u16(data, node) | _u16(data, node + 2) << 16
    flags = _u16(data, node + 4)
    key[0], key[1] = node + NODE_HEADER, _u16(data, node + 6)
    if flags & (SUB_DATABASE | DUPLICATES):
        return UNSUPPORTED
    start = key[0] + key[1]
    if start + (8 if flags & BIG_VALUE else size) > page + page_size:
        return BAD_NODE
    if flags & BIG_VALUE:
        overflow = _page_offset(data, page_size, _u48(data, start), OVERFLOW)
        if overflow < 0:
            return BAD_VALUE
        pages = _u16(data, overflow + 12) | _u16(data, overflow + 14) << 16
        start = overflow + PAGE_HEADER
        if start + size > min(overflow + pages * page_size, data.size):
            return BAD_VALUE
    value[0], value[1] = start, size
    return OK


@jit
def read(data, page_size, depth, root, count, state, step, values, keys):
    """Locate records current, current + step, …, one for each row; returns a status.

    ``values`` and ``keys``: (n, 2) int64, filled with byte offsets and sizes.
    """
    for i in range(len(values)):
        status = _locate(data, page_size, depth, state, values[i], keys[i])
        if status == OK:
            status = skip(data, page_size, depth, root, count, state, step)
        if status != OK:
            return status
    return OK


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


class LmdbCursor(Cursor):
    """A place in an LMDB."""

    def __init__(self, path: str, data: np.ndarray, tree: _Tree):
        super().__init__()
        self._path = path
        self._data = data
        self._tree = tree
        self._state = np.zeros(LEVELS + 3 * MAX_DEPTH, np.int64)
        self._check(rewind(data, tree.page_size, tree.depth, tree.root, self._state))

    def seek(self, position: int) -> None:
        tree, state = self._tree, self._state
        if position < self.position:
            self._check(rewind(self._data, tree.page_size, tree.depth, tree.root, state))
            self.position = 0
        if position > self.position:
            distance = (position - self.position) % tree.count
            self._check(skip(self._data, *self._geometry(), state, distance))
            self.position = position

    def read(self, count: int, step: int = 1) -> Records:
        values, keys = np.empty((count, 2), np.int64), np.empty((count, 2), np.int64)
        self._check(read(self._data, *self._geometry(), self._state, step, values, keys))
        self.position += count * step
        return Records(self._data, values, keys)

    def _geometry(self) -> tuple[int, int, int, int]:
        tree = self._tree
        return tree.page_size, tree.depth, tree.root, tree.count

    def _check(self, status: int) -> None:
        if status != OK:
            problem = _PROBLEMS[status].format(page=self._state[BAD_PAGE_NUMBER])
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
    if tree.count and not 1 <= tree.depth <= MAX_DEPTH:
        raise DataError(f"LMDB '{path}' is damaged: its tree is said to have {tree.depth} levels")
    return tree


def _meta(path: str, head: bytes, offset: int, size: int) -> _Tree:
    if len(head) < offset + PAGE_HEADER + _META.size:
        raise DataError(f"'{path}' is not an LMDB: its data.mdb has only {size} bytes")
    fields = _META.unpack_from(head, offset + PAGE_HEADER)
    magic, version, page_size = fields[0], fields[1], fields[4]
    if magic != MAGIC:
        raise DataError(
            f"'{path}' is not an LMDB of a 64-bit little-endian machine: its data.mdb should hold "
            f"the number 0x{MAGIC:X} at byte {offset + PAGE_HEADER}, found 0x{magic:X}"
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
