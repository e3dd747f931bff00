"""Layers that put the same elements in another order."""

from __future__ import annotations

from typing import Any, NamedTuple

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.permutation import Permutation, reverse
from pycaffe_dist.layers.base import Layer, Need, register
from pycaffe_dist.layers.checking import axis_of, describe, require_axes


class Arrangement(NamedTuple):
    """The bottom seen as ``shape``, whose axes in ``order`` are the top; the ``top``'s shape."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    top: tuple[int, ...]


class Rearranging(Layer):
    """The base of layers that permute axes of the bottom, seen as an array of some shape."""

    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        #: The bottom's and the top's shapes and the order of axes at the last reshape.
        self.made: Arrangement | None = None

    def arrangement(self, bottom: list[Blob]) -> Arrangement:
        """Return the bottom's and the top's shapes and the order of axes."""
        raise NotImplementedError

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        found = self.arrangement(bottom)
        top[0].reshape(*found.top)
        if found != self.made:
            shape, order, _ = self.made = found
            self._there = Permutation(shape, order)
            permuted = tuple(shape[axis] for axis in order)
            self._back = Permutation(permuted, tuple(map(order.index, range(len(order)))))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._there.run(bottom[0].data, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            self._back.run(top[0].diff, bottom[0].diff)


@register("Permute")
class Permute(Rearranging):
    """Axis i of the top is axis ``order[i]`` of the bottom; axes left out follow.

    (weiliu89/caffe, ssd branch.)
    """

    def arrangement(self, bottom: list[Blob]) -> Arrangement:
        shape, given = bottom[0].shape, list(self.param.permute_param.order)
        if len(set(given)) < len(given) or any(axis >= len(shape) for axis in given):
            raise self.error(
                f"needs different axes of bottom {describe(self, bottom, 0)} as its order, "
                f"found {given}"
            )
        order = (*given, *(axis for axis in range(len(shape)) if axis not in given))
        return Arrangement(shape, order, tuple(shape[axis] for axis in order))


@register("Transpose")
class Transpose(Rearranging):
    """Axis i of the top is axis ``dim[i]`` of the bottom.  (tianzhi0549/CTPN.)"""

    def arrangement(self, bottom: list[Blob]) -> Arrangement:
        shape, given = bottom[0].shape, self.param.transpose_param.dim
        order = tuple(axis_of(self, bottom, axis, "dim") for axis in given)
        if sorted(order) != list(range(len(shape))):
            raise self.error(
                f"needs every axis of bottom {describe(self, bottom, 0)} once as a dim, "
                f"found {list(given)}"
            )
        return Arrangement(shape, order, tuple(shape[axis] for axis in order))


@register("ShuffleChannel")
class ShuffleChannel(Rearranging):
    """Deals channels out: seen as (``group``, channels / group), they are transposed.

    (farmingyard/ShuffleNet.)
    """

    def arrangement(self, bottom: list[Blob]) -> Arrangement:
        group = self.param.shuffle_channel_param.group
        axis_of(self, bottom, 1, "channel axis")
        images, channels = bottom[0].shape[:2]
        if group < 1 or channels % group:
            raise self.error(
                f"cannot divide the channels of bottom {describe(self, bottom, 0)} into {group} "
                "groups"
            )
        shape = images, group, channels // group, bottom[0].count_of(2)
        return Arrangement(shape, (0, 2, 1, 3), bottom[0].shape)


@register("Reorg")
class Reorg(Rearranging):
    """Darknet's reorganization of stride² pixels into channels, or with ``reverse`` back.

    Not a plain space-to-depth: channels / stride² planes of all the bottom's values, stride times
    as high and wide, are laid over it.  Without a stride it is 2, as in choasup/caffe-yolo9000.
    (eric612/MobileNet-YOLO; its backward reads an array that
    nothing fills, so here backward is the inverse.)
    """

    def arrangement(self, bottom: list[Blob]) -> Arrangement:
        require_axes(self, bottom, 0, 4)
        images, channels, height, width = bottom[0].shape
        param = self.param.reorg_param
        stride, back = param.stride if param.HasField("stride") else 2, param.reverse
        fits = stride and channels % stride**2 == 0
        if not fits or (not back and (height % stride or width % stride)):
            sizes = "channels" if back else "channels, height and width"
            raise self.error(
                f"needs a stride of at least 1, and {sizes} that stride² and stride divide; found "
                f"stride {stride} and bottom {describe(self, bottom, 0)}"
            )
        planes = channels // stride**2
        if back:
            shape = images, stride, stride, planes, height, width
            top = images, planes, height * stride, width * stride
            return Arrangement(shape, (0, 3, 4, 1, 5, 2), top)
        shape = images, planes, height, stride, width, stride
        top = images, channels * stride**2, height // stride, width // stride
        return Arrangement(shape, (0, 3, 5, 1, 2, 4), top)


class Mirror(Layer):
    """The base of layers that reverse an axis of the bottom, seen as (outer, size, inner)."""

    backward_needs_bottom = Need.NONE

    def reversed_axis(self, bottom: list[Blob]) -> tuple[int, int, int]:
        """Return (outer, size, inner)."""
        raise NotImplementedError

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._shape = self.reversed_axis(bottom)
        top[0].reshape_like(bottom[0])

    def _run(self, source: Any, target: Any) -> None:
        reverse(source.reshape(self._shape), target.reshape(self._shape))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._run(bottom[0].data, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            self._run(top[0].diff, bottom[0].diff)


@register("Reverse")
class Reverse(Mirror):
    """Reverses one axis.  (tianzhi0549/CTPN.)"""

    def reversed_axis(self, bottom: list[Blob]) -> tuple[int, int, int]:
        """Return the sizes before, of and after ``axis``."""
        axis = axis_of(self, bottom, self.param.reverse_param.axis)
        blob = bottom[0]
        return blob.count_of(0, axis), blob.shape[axis], blob.count_of(axis + 1)


@register("Flip")
class Flip(Mirror):
    """Mirrors images: left and right (flip_width), top and bottom (flip_height), both or none.

    (happynear/caffe-windows.)
    """

    def reversed_axis(self, bottom: list[Blob]) -> tuple[int, int, int]:
        """Return the sizes before, of and after the axis; both axes are one."""
        require_axes(self, bottom, 0, 4)
        planes, (height, width) = bottom[0].count_of(0, 2), bottom[0].shape[2:]
        param = self.param.flip_param
        if param.flip_width and param.flip_height:
            return planes, height * width, 1
        if param.flip_width:
            return planes * height, width, 1
        return (planes, height, width) if param.flip_height else (planes, 1, height * width)
