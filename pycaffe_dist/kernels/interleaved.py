"""The transformation of decoded color images, from interleaved pixels to planes of floats.

It does what `kernels.transform` does, eight pixels at a time, which the compiler does not find.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.transform import crop_place

CHANNELS = 3
LANES = 8
# Images of at least this size are written past the caches: they would not stay there until the net
# reads them, and a write costs half when the memory is not read before.
STREAMED_BYTES = 1 << 18

CACHE_LINE = 64

_INDEX = ir.IntType(32)
_BYTES = ir.VectorType(ir.IntType(8), 16)
_WORDS = ir.VectorType(_INDEX, LANES)
# Pixels 0 to 3 come from 16 bytes, 4 to 7 from those that begin 6 later: processors move bytes
# within 16 only, and there in any order and zeros between them, which makes words of them.
_LATER = 6
_FIRST, _SECOND = [0, 3, 6, 9], [12 - _LATER, 15 - _LATER, 18 - _LATER, 21 - _LATER]


def _constants(values: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(_INDEX, len(values)), values)


def _splat(builder: Any, value: Any) -> Any:
    vector = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    first = builder.insert_element(vector, value, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(first, vector, _constants([0] * LANES))


def _numbers(context: Any, builder: Any, kind: Any, given: list[Any], mirrored: bool) -> Any:
    """Return ``(pixels[3 * i] - mean[i]) * scale`` of 8 pixels, given their and the mean's address.

    The scale is of Numba's type ``kind``; the order is reversed where ``mirrored``.
    """

    def load(address: Any, kind: ir.Type, align: int) -> Any:
        return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)

    pixels, mean, scale = given
    vector = ir.VectorType(context.get_value_type(kind), LANES)
    later = builder.add(pixels, ir.Constant(pixels.type, _LATER))
    places, taken = [pixels, later], [*_FIRST, *(16 + k for k in _SECOND)]
    if mirrored:
        places.reverse()
        taken = [*_SECOND[::-1], *(16 + k for k in _FIRST[::-1])]
    halves = [load(place, _BYTES, 1) for place in places]
    both = builder.shuffle_vector(*halves, _constants(list(range(32))))
    spread = [k for place in taken for k in (place, 32, 32, 32)]
    words = builder.shuffle_vector(both, ir.Constant(both.type, None), _constants(spread))
    numbers = builder.sitofp(builder.bitcast(words, _WORDS), vector)
    means = load(mean, vector, kind.bitwidth // 8)
    if mirrored:
        means = builder.shuffle_vector(means, means, _constants(list(range(LANES))[::-1]))
    return builder.fmul(builder.fsub(numbers, means), _splat(builder, scale))


def _store(builder: Any, vector: Any, address: Any, size: int, streamed: bool) -> None:
    place = builder.inttoptr(address, vector.type.as_pointer())
    store = builder.store(vector, place, align=LANES * size if streamed else size)
    if streamed:
        one = builder.module.add_metadata([ir.Constant(_INDEX, 1)])
        store.set_metadata("nontemporal", one)


def _lanes(mirrored: bool, streamed: bool) -> Any:
    """Return a function that writes one channel of 8 neighbouring pixels, by addresses.

    Where ``streamed``, it writes past the caches, and ``to`` must be aligned to 8 numbers.
    """

    @intrinsic
    def lanes(typing_context, pixels, mean, scale, to):
        def generate(context, builder, signature, values):
            kind = signature.args[2]
            numbers = _numbers(context, builder, kind, values[:3], mirrored)
            _store(builder, numbers, values[3], kind.bitwidth // 8, streamed)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, scale, types.intp), generate

    return lanes


def _seam(mirrored: bool) -> Any:
    """Return a function that streams 8 numbers of two lines, ``count`` of the first line."""

    @intrinsic
    def seam(typing_context, pixels, mean, later_pixels, later_mean, scale, count, to):
        def generate(context, builder, signature, values):
            kind, scale = signature.args[4], values[4]
            lines = [
                _numbers(context, builder, kind, [*values[k : k + 2], scale], mirrored)
                for k in (0, 2)
            ]
            limit = _splat(builder, builder.trunc(values[5], _INDEX))
            first = builder.icmp_signed("<", _constants(list(range(LANES))), limit)
            numbers = builder.select(first, *lines)
            _store(builder, numbers, values[6], kind.bitwidth // 8, True)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 4, scale, types.intp, types.intp), generate

    return seam


_forwards, _backwards = _lanes(False, False), _lanes(True, False)
_streamed_forwards, _streamed_backwards = _lanes(False, True), _lanes(True, True)
_seam_forwards, _seam_backwards = _seam(False), _seam(True)


@intrinsic
def _finish_stream(typing_context):
    def generate(context, builder, signature, values):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@jit
def _write_lines(pixels, at, pitch, means, mean_at, mean_pitches, scale, mirrored, shape, to):
    """Write all lines, each in all three channels, while its pixels are in the cache.

    Line h of the first channel begins at ``pixels[at + h * pitch]`` and, with h times the first of
    the pitches, at ``means[mean_at + …]``; the second pitch is from channel to channel.
    """
    rows, columns = shape
    as_float, size = to.dtype.type, to.itemsize
    pixels_at, means_at, to_at = pixels.ctypes.data, means.ctypes.data, to.ctypes.data
    end = columns & -LANES
    for h in range(rows):
        for c in range(CHANNELS):
            line, here = (c * rows + h) * columns, at + h * pitch + c
            mean = mean_at + h * mean_pitches[0] + c * mean_pitches[1]
            place, first, its_mean = to_at + size * line, pixels_at + here, means_at + size * mean
            if mirrored:  # from its end on: pixels are then read forwards, as they are fetched
                for w in range(end - LANES, -1, -LANES):
                    p = columns - LANES - w
                    _backwards(first + CHANNELS * p, its_mean + size * p, scale, place + size * w)
            else:
                for w in range(0, end, LANES):
                    _forwards(first + CHANNELS * w, its_mean + size * w, scale, place + size * w)
            for w in range(end, columns):
                p = columns - 1 - w if mirrored else w
                to[line + w] = (as_float(pixels[here + CHANNELS * p]) - means[mean + p]) * scale


@jit
def _stream_seam(first, mean, pitch, mean_pitch, scale, size, mirrored, columns, waiting, place):
    """Stream the cache line with the ``waiting`` last numbers of a line and the next one's first.

    The arguments are as in `_stream_lines`, with addresses of the line's first pixel, mean and
    number.  Up to 16 pixels and means beside both lines are read, but not used.
    """
    for k in range(0, CACHE_LINE // size, LANES):
        w = k - waiting
        p, before = (columns - LANES - w, -LANES - w) if mirrored else (w, columns + w)
        line = first - pitch + CHANNELS * before, mean - mean_pitch + size * before
        this = first + CHANNELS * p, mean + size * p
        if mirrored:
            _seam_backwards(*line, *this, scale, waiting - k, place + size * w)
        else:
            _seam_forwards(*line, *this, scale, waiting - k, place + size * w)


@jit
def _stream_lines(pixels, at, pitch, means, mean_at, mean_pitches, scale, mirrored, shape, to):
    """Do what `_write_lines` does, past the caches.

    A cache line costs several times as much if it is written in part, or also by ordinary stores:
    all are whole except a few at the channels' ends.  These loops must not count references, as
    slices and calls with arrays do: atomic instructions wait for all streamed writes.
    """
    rows, columns = shape
    as_float, size = to.dtype.type, to.itemsize
    full, shift = CACHE_LINE // size, 2 if size == 4 else 3
    pixels_at, means_at, to_at = pixels.ctypes.data, means.ctypes.data, to.ctypes.data
    for h in range(rows):
        for c in range(CHANNELS):
            line, here = (c * rows + h) * columns, at + h * pitch + c
            mean = mean_at + h * mean_pitches[0] + c * mean_pitches[1]
            place, first, its_mean = to_at + size * line, pixels_at + here, means_at + size * mean
            waiting = (place & (CACHE_LINE - 1)) >> shift
            begin = -waiting & (full - 1)
            end = begin + ((columns - begin) & -full)
            if mirrored:  # see `_write_lines`
                for w in range(end - LANES, begin - 1, -LANES):
                    p, number = columns - LANES - w, place + size * w
                    _streamed_backwards(first + CHANNELS * p, its_mean + size * p, scale, number)
            else:
                for w in range(begin, end, LANES):
                    number = place + size * w
                    _streamed_forwards(first + CHANNELS * w, its_mean + size * w, scale, number)
            if begin and 2 <= h <= rows - 2:  # there are lines beside these two
                pitches = pitch, size * mean_pitches[0]
                _stream_seam(
                    first, its_mean, *pitches, scale, size, mirrored, columns, waiting, place
                )
                begin = 0
            if 1 <= h <= rows - 3:
                end = columns
            for k in range(begin + columns - end):
                w = k if k < begin else end + k - begin
                p = columns - 1 - w if mirrored else w
                to[line + w] = (as_float(pixels[here + CHANNELS * p]) - means[mean + p]) * scale


@jit
def _transform(pixels, height, width, top, left, mirrored, mean, mean_values, scale, out):
    shape, to = out.shape[1:], out.reshape(-1)
    place, pitch, full = top * width + left, CHANNELS * width, CACHE_LINE // out.itemsize
    if mean.size:
        means, pitches, mean_place = mean.reshape(-1), (width, height * width), place
    else:  # a line of the mean serves a whole channel
        beside = shape[1] + 2 * full
        means = np.empty(len(mean_values) * beside, mean_values.dtype)
        pitches, mean_place = (0, beside), full
        for c in range(len(mean_values)):
            means[c * beside : (c + 1) * beside] = mean_values[c]
    wanted = pixels, CHANNELS * place, pitch, means, mean_place, pitches, scale, mirrored, shape, to
    if to.size * to.itemsize >= STREAMED_BYTES and shape[1] >= full:
        _stream_lines(*wanted)
        _finish_stream()
    else:
        _write_lines(*wanted)


@jit
def transform_interleaved(
    pixels: np.ndarray,
    height: int,
    width: int,
    index: int,
    key: np.uint64,
    train: bool,
    mirror: bool,
    mean: np.ndarray,
    mean_values: np.ndarray,
    scale: float,
    out: np.ndarray,
) -> None:
    """Do what `transform_image` does, for decoded color images, several times as fast.

    ``pixels`` is flat, (height * width * 3,), and has the 3 channels of a pixel side by side.
    """
    crop = out.shape[1:]
    top, left, mirrored = crop_place((height, width), crop, key, index, train, mirror)
    _transform(pixels, height, width, top, left, mirrored, mean, mean_values, scale, out)


@jit
def transform_decoded(
    places: np.ndarray,
    mean: np.ndarray,
    mean_values: np.ndarray,
    scale: float,
    out: np.ndarray,
    image: np.ndarray,
    i: int,
) -> None:
    """Transform ``image`` (H, W, 3), number i of a batch, to ``out[i]``.

    It is cropped as ``places`` says (see `crop_places`).
    """
    pixels, height, width = image.reshape(-1), image.shape[0], image.shape[1]
    top, left, mirrored = places[i, 0], places[i, 1], places[i, 2] == 1
    _transform(pixels, height, width, top, left, mirrored, mean, mean_values, scale, out[i])
