"""Concat, Slice, Tile and Crop: copies of whole blocks along the axes of a blob."""

from __future__ import annotations

import itertools
import math

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.columns import put_columns, take_columns
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import axis_of, describe, mismatch
from pycaffe_dist.schema import caffe_pb2


def _named_axis(
    layer: Layer,
    bottom: list[Blob],
    param: caffe_pb2.ConcatParameter | caffe_pb2.SliceParameter,
    old_field: str,
) -> int:
    """Return ``axis``, or the value of the field in old prototxts."""
    if not param.HasField(old_field):
        return axis_of(layer, bottom, param.axis)
    if param.HasField("axis"):
        raise layer.error(f"give axis or {old_field}, not both")
    return axis_of(layer, bottom, getattr(param, old_field), old_field)


def _matrix(array: np.ndarray, axis: int) -> np.ndarray:
    """Return the array with two axes: those before ``axis`` joined, and the others joined."""
    return array.reshape(math.prod(array.shape[:axis]), math.prod(array.shape[axis:]))


@register("Concat")
class Concat(Layer):
    """The bottoms concatenated along ``axis``."""

    bottoms = Arity(1, None)
    backward_needs_bottom = Need.NONE
    only_kernels = True

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._axis = axis = _named_axis(self, bottom, self.param.concat_param, "concat_dim")
        shape = bottom[0].shape
        for index, blob in enumerate(bottom):
            same = (*blob.shape[:axis], *shape[axis : axis + 1], *blob.shape[axis + 1 :]) == shape
            if blob.ndim != len(shape) or not same:
                raise mismatch(
                    self, bottom, 0, index, f"need the same shape but for the joined axis {axis}"
                )
        sizes = [blob.shape[axis] for blob in bottom]
        inner = math.prod(shape[axis + 1 :])
        # The columns of the top's _matrix where the bottoms begin.
        self._begins = [inner * end for end in (0, *itertools.accumulate(sizes))]
        self._outer = math.prod(shape[:axis])
        top[0].reshape(*shape[:axis], sum(sizes), *shape[axis + 1 :])

    @property
    def joins_memory(self) -> bool:
        """Whether the top has its bottoms one behind the other."""
        return self._outer == 1

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        whole = _matrix(top[0].data, self._axis)
        for blob, begin in zip(bottom, self._begins):
            put_columns(_matrix(blob.data, self._axis), whole, begin)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        whole = _matrix(top[0].diff, self._axis)
        for blob, begin, wanted in zip(bottom, self._begins, propagate_down):
            if wanted:
                take_columns(whole, begin, _matrix(blob.diff, self._axis))


@register("Slice")
class Slice(Layer):
    """The bottom cut along ``axis`` at the slice points, or into equal parts."""

    tops = Arity(1, None)
    backward_needs_bottom = Need.NONE

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.slice_param
        self._axis = axis = _named_axis(self, bottom, param, "slice_dim")
        shape, points = bottom[0].shape, list(param.slice_point)
        size = shape[axis]
        if points:
            if len(points) != len(top) - 1:
                raise self.error(
                    f"needs {len(top) - 1} slice_point for {len(top)} tops, found {len(points)}"
                )
            limits = [0, *points, size]
            if any(low >= high for low, high in itertools.pairwise(limits)):
                raise self.error(
                    f"needs rising slice points between 0 and {size}, the size of axis {axis} of "
                    f"bottom {describe(self, bottom, 0)}, found {points}"
                )
        else:
            if size % len(top):
                raise self.error(
                    f"cannot cut axis {axis} of bottom {describe(self, bottom, 0)} into "
                    f"{len(top)} equal parts"
                )
            limits = [size // len(top) * index for index in range(len(top) + 1)]
        for blob, (low, high) in zip(top, itertools.pairwise(limits)):
            blob.reshape(*shape[:axis], high - low, *shape[axis + 1 :])
        inner = math.prod(shape[axis + 1 :])
        # The columns of the bottom's _matrix where the tops begin.
        self._begins = [inner * limit for limit in limits]

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        whole = _matrix(bottom[0].data, self._axis)
        for blob, begin in zip(top, self._begins):
            take_columns(whole, begin, _matrix(blob.data, self._axis))

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            whole = _matrix(bottom[0].diff, self._axis)
            for blob, begin in zip(top, self._begins):
                put_columns(_matrix(blob.diff, self._axis), whole, begin)


@register("Tile")
class Tile(Layer):
    """The bottom repeated ``tiles`` times along ``axis``."""

    backward_needs_bottom = Need.NONE

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.tile_param
        if param.tiles < 1:
            raise self.error(f"needs tiles of at least 1, found {param.tiles}")
        axis = axis_of(self, bottom, param.axis)
        shape = bottom[0].shape
        top[0].reshape(*shape[:axis], shape[axis] * param.tiles, *shape[axis + 1 :])
        self._layout = bottom[0].count_of(0, axis), param.tiles, bottom[0].count_of(axis)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        outer, _, inner = self._layout
        np.copyto(top[0].data.reshape(self._layout), bottom[0].data.reshape(outer, 1, inner))

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            outer, _, inner = self._layout
            dy = top[0].diff.reshape(self._layout)
            np.sum(dy, axis=1, out=bottom[0].diff.reshape(outer, inner))


@register("Crop")
class Crop(Layer):
    """bottom[0] cut to the shape of bottom[1] from ``axis`` on, starting at ``offset``."""

    bottoms = Arity(2, 2)
    backward_needs_bottom = Need.NONE

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.crop_param
        axis = axis_of(self, bottom, param.axis)
        shape, wanted = bottom[0].shape, bottom[1].shape
        if len(shape) != len(wanted):
            raise mismatch(self, bottom, 0, 1, "need the same number of axes")
        offsets = list(param.offset) or [0]
        if len(offsets) == 1:
            offsets *= len(shape) - axis
        if len(offsets) != len(shape) - axis:
            raise self.error(
                f"needs offset once, or for each of the {len(shape) - axis} axes from axis {axis} "
                f"on, found {len(offsets)}"
            )
        window = [slice(None)] * axis
        for index, offset in enumerate(offsets, axis):
            if offset + wanted[index] > shape[index]:
                raise mismatch(
                    self, bottom, 0, 1, f"do not fit with offset {offset} on axis {index}"
                )
            window.append(slice(offset, offset + wanted[index]))
        self._window = tuple(window)
        top[0].reshape(*shape[:axis], *wanted[axis:])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        np.copyto(top[0].data, bottom[0].data[self._window])

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].diff.fill(0)
            bottom[0].diff[self._window] = top[0].diff
        if propagate_down[1]:
            bottom[1].diff.fill(0)
