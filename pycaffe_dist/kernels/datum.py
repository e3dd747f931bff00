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
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


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
def _int32(value):
    """Return what protobuf makes of a varint in an int32 field: its low 32 bits, signed."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@jit
def _field(buffer, at, end):
    """Read a field's head: (number, wire type, scalar or payload size, payload, next field).

    The next field's offset is -1 when the message is malformed.
    """
    tag, at = _varint(buffer, at, end)
    number, wire_type = tag >> 3, tag & 7
    if at < 0 or number < 1:
        return number, wire_type, np.int64(0), at, -1
    if wire_type == _VARINT:
        value, after = _varint(buffer, at, end)
        return number, wire_type, value, at, after
    size = np.int64(8 if wire_type == _FIXED64 else 4)
    if wire_type == _BYTES:
        size, at = _varint(buffer, at, end)
    elif wire_type not in (_FIXED64, _FIXED32):
        at = -1
    if at < 0 or size < 0 or size > end - at:
        return number, wire_type, size, at, -1
    return number, wire_type, size, at, at + size


@jit
def _parse(buffer, at, end, row):
    """Parse the Datum in ``buffer[at:end]`` into ``row``; returns whether it is well formed."""
    row[:] = 0
    while at < end:
        number, wire_type, value, payload, at = _field(buffer, at, end)
        if at < 0:
            return False
        if number == _DATA and wire_type == _BYTES:
            row[DATA], row[SIZE] = payload, value
        elif number == _FLOAT_DATA and wire_type == _FIXED32:
            row[FLOATS] += 1
        elif number == _FLOAT_DATA and wire_type == _BYTES:
            if value % 4:
                return False
            row[FLOATS] += value // 4
        elif wire_type == _VARINT:
            if number == _CHANNELS:
                row[CHANNELS] = _int32(value)
            elif number == _HEIGHT:
                row[HEIGHT] = _int32(value)
            elif number == _WIDTH:
                row[WIDTH] = _int32(value)
            elif number == _LABEL:
                row[LABEL] = _int32(value)
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
        if not _parse(buffer, start, start + size, table[i]):
            return i
    return len(values)


@jit
def copy_floats(buffer: np.ndarray, start: int, size: int, out: np.ndarray) -> None:
    """Copy the float_data of the well-formed Datum at ``start`` to ``out``, flat float32."""
    word = np.empty(1, np.uint32)
    at, end, k = start, start + size, 0
    while at < end:
        number, wire_type, value, payload, at = _field(buffer, at, end)
        if number == _FLOAT_DATA and wire_type in (_FIXED32, _BYTES):
            for j in range(payload, payload + value, 4):
                word[0] = (
                    np.uint32(buffer[j])
                    | np.uint32(buffer[j + 1]) << np.uint32(8)
                    | np.uint32(buffer[j + 2]) << np.uint32(16)
                    | np.uint32(buffer[j + 3]) << np.uint32(24)
                )
                out[k] = word.view(np.float32)[0]
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
