"""The Datum message's wire format, parsed many records at a time.

A Datum holds an image (``channels``, ``height``, ``width``; ``data`` as bytes or, where that is
empty, ``float_data``; or an ``encoded`` file in ``data``) and a ``label``.
"""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels.compiling import jit

# Columns of the table that `parse_datums` fills; DATA is a byte offset, SIZE counts bytes and
# FLOATS counts the elements of float_data.
CHANNELS, HEIGHT, WIDTH, LABEL, DATA, SIZE, FLOATS, ENCODED, COLUMNS = range(9)

# Field numbers of caffe.proto's Datum.
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOAT_DATA, _ENCODED = range(1, 8)
# Wire types.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


@jit
def address(values: np.ndarray) -> int:
    """Return the address of an array, five times as fast as NumPy's ``ctypes.data``."""
    return values.ctypes.data


@jit
def _varint(buffer, at, end):
    """Return (value modulo 2**64 as int64, next byte); the next byte is -1 when it is malformed."""
    value = np.int64(0)
    shift = 0
    while at < end and shift < 70:
        byte = np.int64(buffer[at])
        at += 1
        if shift < 64:
            value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return value, -1


@jit
def int32(value: int) -> int:
    """Return what protobuf makes of a varint in an int32 field: its low 32 bits, signed."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@jit
def next_field(buffer: np.ndarray, at: int, end: int) -> tuple[int, int, int, int, int]:
    """Read a field's head: (number, wire type, scalar or payload size, payload, next field).

    The next field's offset is -1 when the message is malformed.
    """
    tag, at = _varint(buffer, at, end)
    number, wire_type = tag >> 3, tag & 7
    if at < 0 or number < 1:
        return number, wire_type, np.int64(0), at, -1
    if wire_type == VARINT:
        value, after = _varint(buffer, at, end)
        return number, wire_type, value, at, after
    size = np.int64(8 if wire_type == FIXED64 else 4)
    if wire_type == BYTES:
        size, at = _varint(buffer, at, end)
    elif wire_type not in (FIXED64, FIXED32):
        at = -1
    if at < 0 or size < 0 or size > end - at:
        return number, wire_type, size, at, -1
    return number, wire_type, size, at, at + size


@jit
def parse_datum(buffer: np.ndarray, at: int, end: int, row: np.ndarray) -> bool:
    """Parse the Datum in ``buffer[at:end]`` into ``row``, which has zeros; is it well formed?"""
    while at < end:
        number, wire_type, value, payload, at = next_field(buffer, at, end)
        if at < 0:
            return False
        if number == _DATA and wire_type == BYTES:
            row[DATA], row[SIZE] = payload, value
        elif number == _FLOAT_DATA and wire_type == FIXED32:
            row[FLOATS] += 1
        elif number == _FLOAT_DATA and wire_type == BYTES:
            if value % 4:
                return False
            row[FLOATS] += value // 4
        elif wire_type == VARINT:
            if number == _CHANNELS:
                row[CHANNELS] = int32(value)
            elif number == _HEIGHT:
                row[HEIGHT] = int32(value)
            elif number == _WIDTH:
                row[WIDTH] = int32(value)
            elif number == _LABEL:
                row[LABEL] = int32(value)
            elif number == _ENCODED:
                row[ENCODED] = value != 0
    return True


@jit
def parse_datums(buffer: np.ndarray, values: np.ndarray, table: np.ndarray) -> int:
    """Parse serialized Datums into ``table``; returns the index of the first bad one, or n.

    Row i of ``values``, (n, 2), is the byte offset and size of message i in the uint8 ``buffer``;
    ``table`` is (n, COLUMNS) int64.
    """
    for i in range(len(values)):
        start, size = values[i]
        table[i] = 0
        if not parse_datum(buffer, start, start + size, table[i]):
            return i
    return len(values)


@jit
def float_at(buffer: np.ndarray, at: int, word: np.ndarray) -> float:
    """Return the number in four bytes, the lowest first; ``word`` (1,) uint32 is scratch."""
    word[0] = (
        np.uint32(buffer[at])
        | np.uint32(buffer[at + 1]) << np.uint32(8)
        | np.uint32(buffer[at + 2]) << np.uint32(16)
        | np.uint32(buffer[at + 3]) << np.uint32(24)
    )
    return word.view(np.float32)[0]


@jit
def copy_floats(buffer: np.ndarray, start: int, size: int, out: np.ndarray) -> None:
    """Copy the float_data of the well-formed Datum at ``start`` to ``out``, flat float32."""
    word = np.empty(1, np.uint32)
    at, end, k = start, start + size, 0
    while at < end:
        number, wire_type, value, payload, at = next_field(buffer, at, end)
        if number == _FLOAT_DATA and wire_type in (FIXED32, BYTES):
            for j in range(payload, payload + value, 4):
                out[k] = float_at(buffer, j, word)
                k += 1


@jit
def add_datums(buffer: np.ndarray, table: np.ndarray, begin: int, total: np.ndarray) -> int:
    """Add the byte images of Datums from number ``begin`` on to ``total``, flat float32.

    Images are added one after the other in single precision, as in Caffe.  Returns the number of
    the first Datum that is encoded or does not hold ``total.size`` bytes, or n.
    """
    size = total.size
    for i in range(begin, len(table)):
        if table[i, ENCODED] or table[i, SIZE] != size:
            return i
        data = buffer[table[i, DATA] : table[i, DATA] + size]
        for k in range(size):
            total[k] += np.float32(data[k])
    return len(table)
