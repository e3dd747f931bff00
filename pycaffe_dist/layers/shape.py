"""Flatten and Reshape: the same elements in another shape, without a copy."""

from __future__ import annotations

import math

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import Layer, Need, register
from pycaffe_dist.layers.checking import axis_of, describe


class SameElements(Layer):
    """The base of layers whose top shares data and diff with the bottom."""

    backward_needs_bottom = Need.NONE
    computes = False

    def top_shape(self, bottom: list[Blob]) -> tuple[int, ...]:
        """Return the top's shape, with the same number of elements as the bottom's."""
        raise NotImplementedError

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape(*self.top_shape(bottom))
        top[0].share_data(bottom[0])
        top[0].share_diff(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Do nothing: the data is shared."""

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        """Do nothing: the diff is shared."""


@register("Flatten")
class Flatten(SameElements):
    """Joins axes ``axis`` to ``end_axis``; if there are none, inserts one of size 1."""

    def top_shape(self, bottom: list[Blob]) -> tuple[int, ...]:
        param = self.param.flatten_param
        start = axis_of(self, bottom, param.axis)
        stop = axis_of(self, bottom, param.end_axis, "end_axis") + 1
        shape = bottom[0].shape
        if stop < start:
            raise self.error(
                f"end_axis {param.end_axis} lies before axis {param.axis} of bottom "
                f"{describe(self, bottom, 0)}"
            )
        return (*shape[:start], math.prod(shape[start:stop]), *shape[stop:])


@register("Reshape")
class Reshape(SameElements):
    """Gives ``num_axes`` axes from ``axis`` on a new shape: 0 copies, -1 infers a size."""

    def top_shape(self, bottom: list[Blob]) -> tuple[int, ...]:
        param = self.param.reshape_param
        shape, new = bottom[0].shape, list(param.shape.dim)
        # A negative axis counts from after the last one: -1 appends.
        start = param.axis if param.axis >= 0 else len(shape) + param.axis + 1
        stop = len(shape) if param.num_axes == -1 else start + param.num_axes
        if not (0 <= start <= stop <= len(shape) and param.num_axes >= -1):
            raise self.error(
                f"axis {param.axis} with num_axes {param.num_axes} does not fit bottom "
                f"{describe(self, bottom, 0)}"
            )
        if new.count(-1) > 1 or min(new, default=0) < -1:
            raise self.error(f"needs sizes of at least 0 and at most one -1, found shape {new}")
        for index, size in enumerate(new):
            if size == 0:
                if start + index >= len(shape):
                    raise self.error(
                        f"has a 0 at index {index} of its shape, but bottom "
                        f"{describe(self, bottom, 0)} has no axis {start + index} to copy"
                    )
                new[index] = shape[start + index]
        result = [*shape[:start], *new, *shape[stop:]]
        if -1 in new:
            known = -math.prod(result)
            if known == 0 or bottom[0].count % known:
                raise self.error(
                    f"cannot infer a size: the others of {result} do not divide the elements of "
                    f"bottom {describe(self, bottom, 0)}"
                )
            result[start + new.index(-1)] = bottom[0].count // known
        if math.prod(result) != bottom[0].count:
            raise self.error(
                f"cannot make {tuple(result)} of bottom {describe(self, bottom, 0)}: the numbers "
                f"of elements differ"
            )
        return tuple(result)
