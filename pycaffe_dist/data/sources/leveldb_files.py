"""The files of a LevelDB: whether all that its manifest names is there, whole.

LevelDB leaves out, without a word, what a log or a manifest lacks that has been cut off, and a log
that is missing.  Both are made of blocks of 32 KiB, with records in pieces that begin with 7 bytes:
a checksum, the piece's length and its type.

Of 150 damaged databases (tests/damage), LevelDB itself read 10 with records missing; this check
refuses them.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pycaffe_dist.errors import DataError

_BLOCK = 32768
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = range(1, 5)
# A manifest's tags, and what follows each: numbers ("n") and strings of bytes ("s").
_LOG, _DELETED, _TABLE, _OLDER_LOG = 2, 6, 7, 9
_FIELDS = {1: "s", _LOG: "n", 3: "n", 4: "n", 5: "ns", _DELETED: "nn", _TABLE: "nnnss",
           _OLDER_LOG: "n"}  # fmt: skip
_KEY_SUFFIX = 8  # what LevelDB appends to every key
_MOST_NAMED = 3
_CRC32C, _CRC_MASK = 0x82F63B78, 0xA282EAD8


@dataclass(frozen=True)
class _Table:
    number: int
    size: int
    first_key: bytes
    last_key: bytes

    def name(self, path: str) -> str:
        """Return the file's name; it has had two endings."""
        old = f"{self.number:06d}.sst"
        return old if os.path.exists(os.path.join(path, old)) else f"{self.number:06d}.ldb"


@dataclass(frozen=True)
class Files:
    """The files that the LevelDB in folder ``path`` consists of."""

    path: str
    manifest: str
    tables: list[_Table]
    logs: list[str]

    def tables_at(self, key: bytes) -> str:
        """Name the tables that may hold the records behind ``key``."""
        tables = sorted(self.tables, key=lambda table: table.first_key)
        later = [table for table in tables if table.last_key > key]
        here = [table for table in later if table.first_key <= key] or later[:1] or tables
        names = [table.name(self.path) for table in here]
        return " or ".join(names[:_MOST_NAMED] + ["…"] * (len(names) > _MOST_NAMED))

    def wrong_when_opened(self) -> str:
        """Name the file in which LevelDB, as it opened, has found a checksum to be wrong."""
        for crc, kind, piece in _pieces(self.path, self.manifest):
            if _checksum(bytes([kind]) + piece) != crc:
                return self.manifest
        return " or ".join(self.logs)


def check_files(path: str) -> Files:
    """Return the files of the LevelDB in folder ``path``, all there and of the right lengths.

    Raises `DataError` when one is missing or was cut off, and `OSError`.
    """
    with open(os.path.join(path, "CURRENT"), "rb") as file:
        content = file.read(_BLOCK)
    named = re.fullmatch(rb"(MANIFEST-\d+)\n", content)
    manifest = named[1].decode() if named else ""
    if not named or not os.path.isfile(os.path.join(path, manifest)):
        raise damage(path, f"its file CURRENT holds {str(content[:80])[1:]}, no manifest's name")
    tables: dict[int, _Table] = {}
    logs = {_LOG: 0, _OLDER_LOG: 0}
    for tag, values in _edits(path, manifest):
        if tag in logs:
            logs[tag] = values[0]
        elif tag == _DELETED:
            tables.pop(values[1], None)
        elif tag == _TABLE:
            _, number, size, first, last = values
            tables[number] = _Table(number, size, first[:-_KEY_SUFFIX], last[:-_KEY_SUFFIX])
    for table in tables.values():
        _check_size(path, table.name(path), table.size)
    found = [name for name in os.listdir(path) if name.endswith(".log") and name[:-4].isdigit()]
    live = {n for n in logs.values() if n} | {
        int(n[:-4]) for n in found if int(n[:-4]) >= logs[_LOG]
    }
    names = [f"{number:06d}.log" for number in sorted(live)]
    for name in names:
        _check_log(path, name)
    return Files(path, manifest, list(tables.values()), names)


def damage(path: str, words: str) -> DataError:
    """Return the error that tells about a damaged LevelDB."""
    return DataError(f"LevelDB '{path}' is damaged: {words}; copy or create it again")


def _check_size(path: str, name: str, size: int) -> None:
    try:
        found = os.path.getsize(os.path.join(path, name))
    except FileNotFoundError as error:
        raise damage(path, f"its table {name} of {size} bytes is missing") from error
    if found < size:
        raise damage(path, f"its table {name} should have {size} bytes, but has {found}")


def _check_log(path: str, name: str) -> None:
    try:
        for _ in _pieces(path, name):
            pass
    except FileNotFoundError as error:
        raise damage(
            path,
            f"its log {name} is missing, with the latest records (should it have been left out "
            "because it had none, make an empty file of that name)",
        ) from error


def _pieces(path: str, name: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield the pieces of a log's or manifest's records: checksum, type and content.

    Raises `DataError` where there is none, or a record has no end.
    """
    begin, content, place = -1, 0, 0  # of the record that is not yet at its end, of the block
    with open(os.path.join(path, name), "rb") as file:
        while block := file.read(_BLOCK):
            at = 0
            while at < len(block) and at + _HEADER.size <= _BLOCK:
                here, (crc, kind, end) = place + at, _head(block, at)
                if not _FULL <= kind <= _LAST or end > _BLOCK:
                    what = "zeros" if not any(block[at : at + _HEADER.size]) else "something else"
                    raise damage(
                        path, f"its {name} should have a record at byte {here}, has {what}"
                    )
                if end > len(block):
                    raise _cut_off(path, name, here if begin < 0 else begin)
                later = kind in (_MIDDLE, _LAST)
                # Old writers left records that they had begun with nothing.
                if (later and begin < 0) or (content and not later):
                    raise damage(path, f"its {name} has parts of a record amiss at byte {here}")
                yield crc, kind, block[at + _HEADER.size : end]
                content += end - at - _HEADER.size
                if kind == _FIRST:
                    begin = here
                elif kind != _MIDDLE:
                    begin, content = -1, 0
                at = end
            place += len(block)
    if begin >= 0:
        raise _cut_off(path, name, begin)


def _head(block: bytes, at: int) -> tuple[int, int, int]:
    """Return a piece's checksum, type and end in its block."""
    if at + _HEADER.size > len(block):
        return 0, _FULL, at + _HEADER.size
    crc, length, kind = _HEADER.unpack_from(block, at)
    return crc, kind, at + _HEADER.size + length


def _cut_off(path: str, name: str, record: int) -> DataError:
    return damage(path, f"its {name} ends within the record that begins at byte {record}")


def _edits(path: str, manifest: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield the changes of which a manifest is made: tag and values."""
    record = b""
    for _, kind, piece in _pieces(path, manifest):
        record += piece
        if kind in (_FULL, _LAST):
            try:
                yield from _fields(record)
            except (IndexError, KeyError) as error:
                raise damage(path, f"its {manifest} holds something else") from error
            record = b""


def _fields(record: bytes) -> Iterator[tuple[int, list[Any]]]:
    """Yield a record's changes; raises IndexError or KeyError when it is malformed."""
    at = 0
    while at < len(record):
        tag, at = _varint(record, at)
        values: list[Any] = []
        for kind in _FIELDS[tag]:
            value, at = _varint(record, at)
            if kind == "s":
                if at + value > len(record):
                    raise IndexError
                values.append(record[at : at + value])
                at += value
            else:
                values.append(value)
        yield tag, values


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _checksum(data: bytes) -> int:
    """Return the CRC-32C of ``data`` as LevelDB writes it down."""
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (_CRC32C if n & 1 else 0)
        table.append(n)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _CRC_MASK) & 0xFFFFFFFF
