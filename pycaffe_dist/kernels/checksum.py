"""Checksums: of an array, which changes with every single bit; CRC-32C of bytes."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

_BLOCK = 1 << 16
_CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, its lowest bit first


@jit
def _checksum(begin, end, words, sums):
    for block in range(begin, end):
        part = words[block * _BLOCK : (block + 1) * _BLOCK]
        place = np.uint64(2 * block * _BLOCK + 1)
        total = np.uint64(0)
        for i in range(part.size):
            total += np.uint64(part[i]) * (place + np.uint64(2 * i))
        sums[block] = total


@kernel
def checksum(array: np.ndarray) -> int:
    """Return a 64-bit checksum of an array (C-contiguous, float32 or float64).

    It is the sum modulo 2^64 of the 32-bit words, each times an odd number that depends on its
    place.  Any change to one word changes it; changes to several hardly ever cancel out.
    """
    words = array.reshape(-1).view(np.uint32)
    sums = np.zeros(-(-words.size // _BLOCK), np.uint64)
    parallel_for(_checksum, sums.size, words, sums)
    return int(sums.sum(dtype=np.uint64))


def _crc_table() -> np.ndarray:
    """Return the CRC-32C of each byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(_CASTAGNOLI), np.uint32(0))
    return table


_TABLE = _crc_table()


@jit
def _crc(begin, end, data, table, found):
    crc = np.uint32(0xFFFFFFFF)
    for i in range(begin, end):
        crc = table[(crc ^ data[i]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    found[0] = ~crc


@kernel
def crc32c(data: np.ndarray) -> int:
    """Return the CRC-32C (RFC 3720) of bytes, uint8."""
    found = np.zeros(1, np.uint32)
    _crc(0, data.size, data, _TABLE, found)
    return int(found[0])
