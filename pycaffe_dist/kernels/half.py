"""Numbers of 16 bits for the wire: float32 to float16 or bfloat16 and back, to nearest even.

A message is one array of 16-bit words: a head of ``HEAD`` words, then one word per value. Values of
float16 are multiplied by a power of two that brings the largest to 2^14 or above, so that they
neither overflow nor vanish; the head's first word holds its exponent.
"""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.elementwise import blockwise
from pycaffe_dist.threads import parallel_for

# 32 bytes, so that the values after it are as well aligned as the array.
HEAD = 16
# The head holds the exponent of the power of two plus this.
_BIAS = 256
# The largest value becomes at least 2^14, and less than 2^15.
_TOP_EXPONENT = 14
_BLOCK = 1 << 14
_GRAIN = 4  # blocks


@jit
def _largest(begin, end, values, largest):
    """Find the bits of each block's largest magnitude."""
    for block in range(begin, end):
        most = np.uint32(0)
        x = values[block * _BLOCK : (block + 1) * _BLOCK]
        for i in range(x.size):
            most = max(most, np.uint32(np.float32(x[i]).view(np.uint32) & 0x7FFFFFFF))
        largest[block] = most


@jit
def _to_half(value):
    """Return the float16 nearest to a float32, as 16 bits."""
    bits = np.float32(value).view(np.uint32)
    size = np.uint32(bits & 0x7FFFFFFF)
    # From 2^-14 on: move the exponent's bias from 127 to 15, and round 13 bits away.
    normal = np.uint32(size + np.uint32(0xFFF) + ((size >> 13) & 1) - np.uint32(112 << 23)) >> 13
    # Below: adding 0.5 rounds to the spacing of float16's smallest numbers.
    small = np.float32(size.view(np.float32) + np.float32(0.5)).view(np.uint32) - 0x3F000000
    half = np.uint32(normal) if size >= np.uint32(113 << 23) else np.uint32(small)
    half = half if size < np.uint32(0x47800000) else np.uint32(0x7C00)
    half = half if size <= np.uint32(0x7F800000) else np.uint32(0x7E00)
    return np.uint16(half | ((bits >> 16) & 0x8000))


@jit
def _from_half(half):
    """Return the float32 that equals a float16 given as 16 bits."""
    size = np.uint32(np.uint32(half & 0x7FFF) << 13)
    # Multiplying by 2^112 moves the exponent's bias, of the smallest numbers as well.
    moved = np.float32(size.view(np.float32) * np.float32(2.0**112)).view(np.uint32)
    moved = moved if size < np.uint32(0x7C00 << 13) else np.uint32(size | 0x7F800000)
    return np.uint32(moved | (np.uint32(half & 0x8000) << 16)).view(np.float32)


@jit
def to_brain(value: float) -> int:
    """Return the bfloat16 nearest to a float32, as 16 bits."""
    bits = np.float32(value).view(np.uint32)
    near = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> 16) & 1))
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.uint16((np.uint32(bits | 0x400000) if is_nan else near) >> 16)


@jit
def _from_brain(brain):
    """Return the float32 that equals a bfloat16 given as 16 bits."""
    return np.uint32(np.uint32(brain) << 16).view(np.float32)


@jit
def _rest(value, sent):
    """Return the rounding error; 0 when either value is not finite."""
    rest = value - sent
    return rest if abs(rest) <= np.float32(3.4e38) else np.float32(0)


@jit
def _encode_half(begin, end, values, words, factor):
    x, w = values[begin * _BLOCK : end * _BLOCK], words[begin * _BLOCK : end * _BLOCK]
    for i in range(x.size):
        w[i] = _to_half(x[i] * factor)


@jit
def _encode_half_rest(begin, end, residual, words, factor, inverse):
    """Encode ``residual``, which includes the values, and keep the rounding errors in it."""
    r, w = residual[begin * _BLOCK : end * _BLOCK], words[begin * _BLOCK : end * _BLOCK]
    for i in range(r.size):
        half = _to_half(r[i] * factor)
        w[i] = half
        r[i] = _rest(r[i], _from_half(half) * inverse)


@jit
def _encode_brain(begin, end, values, words):
    x, w = values[begin * _BLOCK : end * _BLOCK], words[begin * _BLOCK : end * _BLOCK]
    for i in range(x.size):
        w[i] = to_brain(x[i])


@jit
def _encode_brain_rest(begin, end, values, residual, words):
    x, w = values[begin * _BLOCK : end * _BLOCK], words[begin * _BLOCK : end * _BLOCK]
    r = residual[begin * _BLOCK : end * _BLOCK]
    for i in range(x.size):
        value = x[i] + r[i]
        brain = to_brain(value)
        w[i] = brain
        r[i] = _rest(value, _from_brain(brain))


@jit
def _decode_half(begin, end, words, values, inverse):
    x, w = values[begin * _BLOCK : end * _BLOCK], words[begin * _BLOCK : end * _BLOCK]
    for i in range(x.size):
        x[i] = _from_half(w[i]) * inverse


@jit
def _decode_brain(begin, end, words, values):
    x, w = values[begin * _BLOCK : end * _BLOCK], words[begin * _BLOCK : end * _BLOCK]
    for i in range(x.size):
        x[i] = _from_brain(w[i])


def _add(total: np.ndarray, values: np.ndarray) -> None:
    np.add(total, values, out=total)


def _blocks(values: np.ndarray) -> int:
    return -(-values.size // _BLOCK)


def _exponent(largest: int) -> int:
    """Return the exponent that scales a magnitude, given by its bits, to 2^14 or above."""
    if largest == 0 or largest >= 0x7F800000:  # an infinity must stay one
        return 0
    return min(127, 127 + _TOP_EXPONENT - (largest >> 23))


def _power(exponent: int) -> np.float32:
    return np.float32(2.0**exponent)


@kernel
def encode_float16(values: np.ndarray, residual: np.ndarray | None, wire: np.ndarray) -> None:
    """Set ``wire`` (uint16, ``HEAD`` longer) to ``values`` (float32, one axis), rounded.

    A ``residual`` (like ``values``) is added first, and then set to the rounding errors.
    """
    if residual is not None:
        blockwise(_add, residual, values)
    kept = values if residual is None else residual
    largest = np.zeros(_blocks(values), np.uint32)
    parallel_for(_largest, largest.size, kept, largest, grain=_GRAIN)
    exponent = _exponent(int(largest.max(initial=0)))
    wire[:HEAD] = 0
    wire[0] = exponent + _BIAS
    arguments = kept, wire[HEAD:], _power(exponent)
    if residual is None:
        parallel_for(_encode_half, largest.size, *arguments, grain=_GRAIN)
    else:
        parallel_for(_encode_half_rest, largest.size, *arguments, _power(-exponent), grain=_GRAIN)


@kernel
def decode_float16(wire: np.ndarray, values: np.ndarray) -> None:
    """Set ``values`` (float32, one axis) to what :func:`encode_float16` wrote."""
    inverse = _power(_BIAS - int(wire[0]))
    parallel_for(_decode_half, _blocks(values), wire[HEAD:], values, inverse, grain=_GRAIN)


@kernel
def encode_bfloat16(values: np.ndarray, residual: np.ndarray | None, wire: np.ndarray) -> None:
    """Set ``wire`` (uint16, ``HEAD`` longer) to ``values`` (float32, one axis), rounded.

    A ``residual`` (like ``values``) is added first, and then set to the rounding errors.
    """
    wire[:HEAD] = 0
    if residual is None:
        parallel_for(_encode_brain, _blocks(values), values, wire[HEAD:], grain=_GRAIN)
    else:
        parallel_for(
            _encode_brain_rest, _blocks(values), values, residual, wire[HEAD:], grain=_GRAIN
        )


@kernel
def decode_bfloat16(wire: np.ndarray, values: np.ndarray) -> None:
    """Set ``values`` (float32, one axis) to what :func:`encode_bfloat16` wrote."""
    parallel_for(_decode_brain, _blocks(values), wire[HEAD:], values, grain=_GRAIN)
