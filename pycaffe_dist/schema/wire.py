"""The parts of protobuf's wire format that are needed for large blobs and truncated files.

A message is a sequence of fields: a varint ``number << 3 | kind``, then the value.  Kinds are 0
varint, 1 eight bytes, 2 a varint length and that many bytes, 5 four bytes.  Packed numbers are of
kind 2.  https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

# Messages are lists of parts, joined only when they are written to a file.
Part = bytes | memoryview

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """Return the variable-length code of a non-negative number."""
    code = bytearray()
    while value >= 0x80:
        code.append(value & 0x7F | 0x80)
        value >>= 7
    code.append(value)
    return bytes(code)


def packed(number: int, values: np.ndarray) -> list[Part]:
    """Return a packed field of little-endian numbers; nothing for an empty array, as in protobuf.

    The array must be contiguous and is not copied.
    """
    if not values.size:
        return []
    return nested(number, [values.reshape(-1).view(np.uint8).data])


def nested(number: int, parts: list[Part]) -> list[Part]:
    """Return a field whose value is a message in parts."""
    return [varint(number << 3 | _BYTES) + varint(size(parts)), *parts]


def size(parts: list[Part]) -> int:
    """Return the number of bytes in all parts together."""
    return sum(len(part) for part in parts)


def unpacked(data: bytes, number: int, kind: str) -> np.ndarray:
    """Return the numbers of a packed field as a new little-endian array; empty without it.

    The encoded message must not have the field in its unpacked form.
    """
    view = memoryview(data)
    found = [view[start:end] for field, start, end in _fields(data) if field == number]
    return np.frombuffer(bytearray().join(found), kind).astype(kind[1:], copy=False)


class Field(NamedTuple):
    """One field of a message: its value and, with its key, the whole of it."""

    number: int
    is_bytes: bool
    value: bytes
    whole: bytes


def fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message that is not cut off."""
    begin = 0
    for number, start, end in _fields(data):
        kind = _read_varint(data, begin)[0] & 7
        yield Field(number, kind == _BYTES, data[start:end], data[begin:end])
        begin = end


def only(data: bytes, numbers: Collection[int]) -> list[Part]:
    """Return those fields of a message, in parts, that have one of ``numbers``."""
    return [field.whole for field in fields(data) if field.number in numbers]


def length_if_truncated(data: bytes) -> int:
    """Return the minimum length of a truncated message; 0 if it is not truncated but damaged.

    The data must have at least one byte.
    """
    *_, (number, _, end) = _fields(data)
    return end if number and end > len(data) else 0


def _fields(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field's value; the last may end past the data.

    Bytes that are not a field get the number 0 and end the iteration.
    """
    position = 0
    while position < len(data):
        key, start = _read_varint(data, position)
        kind = key & 7
        if kind == _VARINT:
            _, position = _read_varint(data, start)
        elif kind == _BYTES:
            length, start = _read_varint(data, start)
            position = start + length
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            position = start + (8 if kind == _EIGHT_BYTES else 4)
        else:
            key = 0
        yield key >> 3, start, position
        if key >> 3 == 0:
            return


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position and the position after it; past the end, bytes are zero.

    A number of more than ten bytes, the maximum, is read as 0.
    """
    value = shift = 0
    while True:
        byte = data[position] if position < len(data) else 0
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift == 70:
            return 0, position
