"""The transformation of decoded color images: from pixels side by side to planes of floats.

As `kernels.transform`, in eight lanes at a time, which the compiler does not find by itself.
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
# From this size on an image is written past the caches: it would not stay there until the net
# comes to it, and memory that is not read before it is written costs half.
STREAMED_BYTES = 1 << 18

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


def _lanes(mirrored: bool, streamed: bool) -> Any:
    """Return a function that writes one channel of 8 neighbouring pixels.

    ``to[w + i] = (row[at + 3 * i] - mean[p + i]) * scale``, with ``mirrored`` to ``to[w + 7 - i]``.
    Where it is ``streamed``, ``to[w]`` must be aligned to 8 numbers.
    """

    @intrinsic
    def lanes(typing_context, row, at, mean, p, scale, to, w):
        def generate(context, builder, signature, values):
            def pointer(array: int, index: Any, kind: ir.Type) -> Any:
                data = context.make_array(signature.args[array])(context, builder, values[array])
                return builder.bitcast(builder.gep(data.data, [index]), kind.as_pointer())

            number = context.get_value_type(signature.args[4])
            vector, size = ir.VectorType(number, LANES), signature.args[4].bitwidth // 8
            later = builder.add(values[1], ir.Constant(values[1].type, _LATER))
            places, taken = [values[1], later], [*_FIRST, *(16 + k for k in _SECOND)]
            if mirrored:
                places.reverse()
                taken = [*_SECOND[::-1], *(16 + k for k in _FIRST[::-1])]
            halves = [builder.load(pointer(0, place, _BYTES), align=1) for place in places]
            both = builder.shuffle_vector(*halves, _constants(list(range(32))))
            zeros = ir.Constant(both.type, None)
            spread = [k for place in taken for k in (place, 32, 32, 32)]
            words = builder.shuffle_vector(both, zeros, _constants(spread))
            pixels = builder.sitofp(builder.bitcast(words, _WORDS), vector)
            means = builder.load(pointer(2, values[3], vector), align=size)
            if mirrored:
                means = builder.shuffle_vector(means, means, _constants(list(range(LANES))[::-1]))
            result = builder.fmul(builder.fsub(pixels, means), _splat(builder, values[4]))
            place = pointer(5, values[6], vector)
            store = builder.store(result, place, align=LANES * size if streamed else size)
            if streamed:
                one = builder.module.add_metadata([ir.Constant(_INDEX, 1)])
                store.set_metadata("nontemporal", one)
            return context.get_dummy_value()

        return types.void(row, types.intp, mean, types.intp, scale, to, types.intp), generate

    return lanes


_forwards, _backwards = _lanes(False, False), _lanes(True, False)
_streamed_forwards, _streamed_backwards = _lanes(False, True), _lanes(True, True)


@intrinsic
def _finish_stream(typing_context):
    def generate(context, builder, signature, values):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@jit
def _write_lines(
    pixels, at, pitch, means, mean_at, mean_pitches, scale, mirrored, first, shape, to
):
    """Write all lines, of the three channels in turn while their pixels are at hand.

    Line h of the first channel begins at ``pixels[at + h * pitch]`` and, with h times the first of
    the pitches, at ``means[mean_at + …]``; the second pitch is from channel to channel.  Streams
    where ``first``, the first element of ``to`` that is aligned, is not negative.  Nothing here may
    count references, as slices do: atomic instructions wait for all that is streamed.
    """
    rows, columns = shape
    as_float = to.dtype.type
    for h in range(rows):
        for c in range(CHANNELS):
            line, here = (c * rows + h) * columns, at + h * pitch + c
            mean = mean_at + h * mean_pitches[0] + c * mean_pitches[1]
            begin = min(columns, (first - line) % LANES) if first >= 0 else 0
            end = begin + (columns - begin) // LANES * LANES
            for w in range(begin):
                p = columns - 1 - w if mirrored else w
                to[line + w] = (as_float(pixels[here + CHANNELS * p]) - means[mean + p]) * scale
            if first >= 0 and mirrored:
                for w in range(begin, end, LANES):
                    p = columns - LANES - w
                    _streamed_backwards(
                        pixels, here + CHANNELS * p, means, mean + p, scale, to, line + w
                    )
            elif first >= 0:
                for w in range(begin, end, LANES):
                    _streamed_forwards(
                        pixels, here + CHANNELS * w, means, mean + w, scale, to, line + w
                    )
            elif mirrored:
                for w in range(begin, end, LANES):
                    p = columns - LANES - w
                    _backwards(pixels, here + CHANNELS * p, means, mean + p, scale, to, line + w)
            else:
                for w in range(begin, end, LANES):
                    _forwards(pixels, here + CHANNELS * w, means, mean + w, scale, to, line + w)
            for w in range(end, columns):
                p = columns - 1 - w if mirrored else w
                to[line + w] = (as_float(pixels[here + CHANNELS * p]) - means[mean + p]) * scale


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
    shape = out.shape[1:]
    top, left, mirrored = crop_place(height, width, key, index, train, mirror, out)
    streamed = out.size * out.itemsize >= STREAMED_BYTES
    to, place, pitch = out.reshape(-1), top * width + left, CHANNELS * width
    first = -(to.ctypes.data // to.itemsize) % LANES if streamed else -1
    if mean.size:
        means, pitches = mean.reshape(-1), (width, height * width)
        _write_lines(
            pixels,
            CHANNELS * place,
            pitch,
            means,
            place,
            pitches,
            scale,
            mirrored,
            first,
            shape,
            to,
        )
    else:  # a line of the mean serves a whole channel
        means, pitches = np.repeat(mean_values, shape[1]), (0, shape[1])
        _write_lines(
            pixels, CHANNELS * place, pitch, means, 0, pitches, scale, mirrored, first, shape, to
        )
    if streamed:
        _finish_stream()
