"""LMDB's pages, checked before liblmdb reads them: it trusts them, and a bad one ends the process.

A data.mdb consists of pages of one size.  Pages 0 and 1 describe the database, in turn; from its
root branch pages lead to leaf pages, which hold the records.  These begin with 16 bytes: the page's
number, flags, the end of a list of its nodes' offsets, and where its nodes begin.  A value that is
too long for a leaf has pages of its own, of which liblmdb reads nothing but the value.

The check is worth its code: of 270 damaged files (tests/damage, test_data_lmdb_damage.py), 75 ended
a process that read them with liblmdb alone.  Checking pages 0 and 1 and the file's length leaves 27
of these, checking the tree none.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycaffe_dist.errors import DataError

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_HEADER, _NODE, _NUMBER = 16, 8, 8
_BRANCH, _LEAF, _VALUE, _META = 1, 2, 4, 8
_BIG = 1  # the flag of a record whose value has pages of its own
_PAGE_SIZES = [1 << i for i in range(9, 17)]
_DEEPEST = 32  # liblmdb descends no further
# The flags of page 0 or 1; magic number, version; page size; the records' tree: its flags, depth,
# number of records, root; the last page, and the number of the transaction that wrote this.
_META_PAGE = struct.Struct("<10xH4x II16x I44x 4xHH24xQQ QQ")
# The first page of a long value: its number, flags, how many there are.
_VALUE_PAGE = struct.Struct("<Q2xHI")
# Pages that are read and checked at once.
_AT_ONCE = 256
# Of a large database on a slow disk this much is checked when it is opened, and the rest when it
# is the turn of the records there.
_SECONDS_AT_OPENING = 0.5

# Which of some pages, or nodes, are bad, and what is wrong with number i.
_Fault = tuple[np.ndarray, Callable[[int], str]]


@dataclass(frozen=True)
class _Meta:
    """What a database says of itself."""

    page_size: int
    flags: int
    depth: int
    records: int
    root: int
    last_page: int
    transaction: int

    @property
    def bytes(self) -> int:
        """How large the file must be."""
        return (self.last_page + 1) * self.page_size


class _Pages:
    """Some neighbouring pages of one level of the tree, and their nodes.

    ``numbers`` (n,) are the pages' and ``data`` (n, page size) their bytes; nodes ``first``,
    ``first + 1``, … of the ``parents`` lead to them.
    """

    def __init__(self, numbers: np.ndarray, data: np.ndarray, parents: _Pages | None, first: int):
        self.numbers, self.data = numbers, data
        self._parents, self._first = parents, first
        self._words = data.view("<u2")
        self.stored = data.view("<u8")[:, 0]
        self.flags = self._words[:, 5]
        self.lower, self.upper = (self._words[:, i].astype(np.int64) for i in (6, 7))
        self.counts = (self.lower - _HEADER) // 2

    def find_nodes(self) -> None:
        """Find each node's page, as an index, and offset; the pages' counts have been checked."""
        self.page = np.repeat(np.arange(len(self.counts)), self.counts)
        within = np.arange(len(self.page)) - (np.cumsum(self.counts) - self.counts)[self.page]
        self.offset = self._words[self.page, _HEADER // 2 + within].astype(np.int64)

    def read_nodes(self) -> None:
        """Read the nodes' four words; their offsets have been checked."""
        place = self.page * self._words.shape[1] + self.offset // 2
        words = self._words.reshape(-1)
        low, high, flags, self.key_size = (words[place + i].astype(np.int64) for i in range(4))
        self.low, self.node_flags = low | high << 16, flags

    def after_keys(self, nodes: np.ndarray) -> np.ndarray:
        """Return the 8 bytes behind the keys of these nodes, as numbers."""
        start = self.page[nodes] * self.data.shape[1]
        start += self.offset[nodes] + _NODE + self.key_size[nodes]
        return self.data.reshape(-1)[start[:, None] + np.arange(_NUMBER)].view("<u8")[:, 0]

    def key(self, node: int) -> str:
        """Return a node's key for messages."""
        start = self.offset[node] + _NODE
        key = self.data[self.page[node], start : start + self.key_size[node]].tobytes()
        return key.decode("utf-8", "backslashreplace")

    def key_near(self, i: int) -> str:
        """Return words about the key that the tree has next to page ``i``."""
        parents, node = self._parents, self._first + i
        if parents is None:
            return ""
        # The first key of a branch page is not written down.
        node += node == 0 or parents.page[node] != parents.page[node - 1]
        return f", near the record with key '{parents.key(node)}',"


class PageCheck:
    """Checks the pages of the database in folder ``path``, in the order of its records.

    ``records`` is the number of records, from the first one on, that are known to be safe to read.
    With ``values_from`` the first pages of long values are looked at, too, from that record on;
    otherwise these are not touched.  All methods raise `DataError`: it names the page and a key
    near it.
    """

    def __init__(self, path: str, file: str, values_from: int | None = None):
        self.records = 0
        self._path, self._values_from = path, values_from
        self._error: DataError | None = None
        self._lock = threading.Lock()
        self._file = os.fdopen(os.open(file, os.O_RDONLY), "rb", buffering=0)
        try:
            self._meta = self._read_meta(file)
        except BaseException:
            self._file.close()
            raise
        self._batches = self._checked()

    @property
    def transaction(self) -> int:
        """The number of the transaction that wrote the database as it is checked."""
        return self._meta.transaction

    @property
    def bytes(self) -> int:
        """How large the file must be."""
        return self._meta.bytes

    @property
    def descriptor(self) -> int:
        """The open file's."""
        return self._file.fileno()

    def begin(self) -> None:
        """Check what there is time for when a database is opened: usually all of it."""
        deadline = time.monotonic() + _SECONDS_AT_OPENING
        while self.records < self._meta.records and time.monotonic() < deadline:
            self.upto(self.records)

    def upto(self, number: int) -> None:
        """Check the pages on the way to records up to ``number``, unless it has been done."""
        if number < self.records:
            return
        with self._lock:
            while self.records <= number and self.records < self._meta.records:
                if self._error is not None:
                    raise self._error
                try:
                    self._advance()
                except DataError as error:
                    self._error = error
                    raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _advance(self) -> None:
        self.records = next(self._batches)
        if self.records == self._meta.records:
            next(self._batches, None)  # there must be none

    def _checked(self) -> Iterator[int]:
        """Check pages, in the order of the records; yield how many of these there are so far."""
        found, said = 0, self._meta.records
        for count in self._below(np.array([self._meta.root]), 1, None):
            found += count
            if found > said:
                break
            yield found
        if found != said:
            more = "at least " if found > said else ""
            raise self._damage(f"it is said to have {said} records, but has {more}{found}")

    def _below(self, numbers: np.ndarray, level: int, parents: _Pages | None) -> Iterator[int]:
        """Check these pages of one level and all below; yield numbers of records."""
        for first in range(0, len(numbers), _AT_ONCE):
            part = numbers[first : first + _AT_ONCE]
            pages = _Pages(part, self._read(part), parents, first)
            leaves = level == self._meta.depth
            self._check_headers(pages, *((_LEAF, 1) if leaves else (_BRANCH, 2)))
            pages.find_nodes()
            self._check_places(pages)
            pages.read_nodes()
            if leaves:
                self._check_records(pages)
                yield len(pages.page)
            else:
                yield from self._below(self._children(pages), level + 1, pages)

    def _read(self, numbers: np.ndarray) -> np.ndarray:
        """Return pages (n, page size) uint8; those that follow one another are read at once.

        They are not mapped: the disk's errors, and a file that shrinks, can then be told.
        """
        size, begin = self._meta.page_size, 0
        data = np.empty((len(numbers), size), np.uint8)
        for end in [*(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]:
            number = int(numbers[begin])
            into: Any = data[begin:end].reshape(-1)
            try:
                done = os.preadv(self._file.fileno(), [into], number * size)
            except OSError as error:
                raise self._damage(f"pages from {number} on: {error.strerror}") from error
            if done < into.nbytes:
                raise self._damage(f"pages from {number} on have gone since it was opened")
            begin = end
        return data

    def _check_headers(self, pages: _Pages, flags: int, least: int) -> None:
        kind, size = "leaf" if flags == _LEAF else "branch", self._meta.page_size
        lower, upper = pages.lower, pages.upper
        outside = (pages.counts < least) | (lower % 2 == 1) | (lower > upper) | (upper > size)
        self._refuse(
            pages,
            (pages.stored != pages.numbers, lambda i: f"says that it is page {pages.stored[i]}"),
            (
                pages.flags != flags,
                lambda i: f"should be a {kind} page (flags {flags}), found flags {pages.flags[i]}",
            ),
            (
                outside,
                lambda i: (
                    f"should have {least} or more nodes between {_HEADER} and {size}, found their "
                    f"list to end at {lower[i]} and the first of them to begin at {upper[i]}"
                ),
            ),
        )

    def _check_places(self, pages: _Pages) -> None:
        least, last = pages.upper[pages.page], self._meta.page_size - _NODE
        self._refuse_nodes(
            pages,
            (
                (pages.offset < least) | (pages.offset > last) | (pages.offset % 2 == 1),
                lambda i: f"begins at {pages.offset[i]}: expected {least[i]} to {last}, and even",
            ),
        )

    def _check_records(self, pages: _Pages) -> None:
        size, flags = self._meta.page_size, pages.node_flags
        value = np.where(flags == _BIG, _NUMBER, pages.low)
        self._refuse_nodes(
            pages,
            self._too_long(pages, value),
            (flags & ~_BIG != 0, lambda i: f"should be a record (flags 0 or 1), found {flags[i]}"),
            (pages.key_size == 0, lambda i: "has no key"),
        )
        big = np.flatnonzero(flags == _BIG)
        if not big.size:
            return
        start, last = np.zeros(len(flags), np.uint64), np.uint64(self._meta.last_page)
        start[big] = pages.after_keys(big)
        many = ((_HEADER + pages.low + size - 1) // size).astype(np.uint64)
        outside = (start < 2) | (start > last) | (start + many - np.uint64(1) > last)
        self._refuse_nodes(
            pages,
            (
                outside & (flags == _BIG),
                lambda i: f"has its value in {many[i]} page(s) from {start[i]} on, not in 2–{last}",
            ),
        )

        if self._values_from is not None:
            for i in big[self.records + big >= self._values_from].tolist():
                self._check_value(pages, i, int(start[i]), int(many[i]))

    def _check_value(self, pages: _Pages, node: int, start: int, many: int) -> None:
        place = start * self._meta.page_size
        head = _VALUE_PAGE.unpack(os.pread(self._file.fileno(), _VALUE_PAGE.size, place))
        if head != (start, _VALUE, head[2]) or head[2] < many:
            key = pages.key(node)
            raise self._damage(
                f"page {start} of its data.mdb should begin {many} page(s) with the value of the "
                f"record with key '{key}' (flags {_VALUE}), found page {head[0]}, flags {head[1]}, "
                f"{head[2]} page(s)"
            )

    def _children(self, pages: _Pages) -> np.ndarray:
        """Return the numbers of the pages below branch pages."""
        numbers, last = pages.low | pages.node_flags << 32, self._meta.last_page
        self._refuse_nodes(
            pages,
            self._too_long(pages, np.zeros_like(pages.low)),
            (
                (numbers < 2) | (numbers > last),
                lambda i: f"leads to page {numbers[i]}, not to one of 2–{last}",
            ),
        )
        return numbers

    def _too_long(self, pages: _Pages, value: np.ndarray) -> _Fault:
        end, size = pages.offset + _NODE + pages.key_size + value, self._meta.page_size
        return end > size, lambda i: f"ends at {end[i]}, but the page at {size}"

    def _refuse(self, pages: _Pages, *faults: _Fault) -> None:
        """Raise for the first of the pages that has a fault, if there is one."""
        for bad, words in faults:
            if bad.any():
                i = int(bad.argmax())
                raise self._page_damage(pages, i, words(i))

    def _refuse_nodes(self, pages: _Pages, *faults: _Fault) -> None:
        """Raise for the first of the pages' nodes that has a fault, if there is one."""
        for bad, words in faults:
            if bad.any():
                i = int(bad.argmax())
                page = int(pages.page[i])
                node = i - int(pages.page.searchsorted(page))
                raise self._page_damage(pages, page, f"is wrong: node {node} {words(i)}")

    def _page_damage(self, pages: _Pages, i: int, words: str) -> DataError:
        number = pages.numbers[i]
        return self._damage(f"page {number} of its data.mdb{pages.key_near(i)} {words}")

    def _damage(self, words: str) -> DataError:
        return DataError(f"LMDB '{self._path}' is damaged: {words}; copy or create it again")

    def _read_meta(self, file: str) -> _Meta:
        """Return what the newer of the two pages that describe the database says."""
        size = os.fstat(self._file.fileno()).st_size
        if not size:
            raise DataError(f"'{self._path}' is not an LMDB: its data.mdb is empty")
        first = self._meta_at(0)
        second = self._meta_at(first.page_size)
        meta = second if second.transaction > first.transaction else first
        if size < meta.bytes:
            raise DataError(
                f"LMDB '{self._path}' is truncated: '{file}' should have {meta.bytes} bytes but "
                f"has {size}; copy or create it again"
            )
        if meta.flags:
            raise DataError(
                f"LMDB '{self._path}' has flags {meta.flags:#x}: expected one value for each key "
                "and keys in the order of their bytes (flags 0), as Caffe writes it"
            )
        if meta.records and not (meta.depth <= _DEEPEST and 2 <= meta.root <= meta.last_page):
            raise self._damage(
                f"its {meta.records} records are said to be below page {meta.root} of "
                f"{meta.last_page}, in a tree of depth {meta.depth}"
            )
        return meta

    def _meta_at(self, place: int) -> _Meta:
        page = os.pread(self._file.fileno(), _META_PAGE.size, place)
        number = 1 if place else 0
        if len(page) < _META_PAGE.size:
            raise DataError(f"'{self._path}' is not an LMDB: its data.mdb ends in page {number}")
        flags, magic, version, page_size, *rest = _META_PAGE.unpack(page)
        if not flags & _META or magic != _MAGIC:
            raise DataError(
                f"'{self._path}' is not an LMDB, or is damaged: page {number} of its data.mdb "
                "does not describe one"
            )
        if version != _VERSION:
            raise DataError(f"LMDB '{self._path}' has data format v{version}, expected v{_VERSION}")
        if page_size not in _PAGE_SIZES or place not in (0, page_size):
            raise self._damage(f"page {number} says that pages have {page_size} bytes")
        return _Meta(page_size, *rest)
