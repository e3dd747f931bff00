"""Convolution, Deconvolution and Im2col over any number of spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.activation import relu_backward
from pycaffe_dist.kernels.bias_add import add_bias, bias_gradient, rectified_bias_gradient
from pycaffe_dist.kernels.convolution import Convolution as ConvolutionPlan
from pycaffe_dist.kernels.convolution import ConvolutionGeometry, LibraryConvolution
from pycaffe_dist.kernels.im2col import Im2colPlan, col2im, im2col
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.channel_norm import ChannelNorm
from pycaffe_dist.layers.checking import axis_of, describe, output_of, require_same_shape
from pycaffe_dist.layers.connectivity import disconnect
from pycaffe_dist.layers.joined import Joined, Rectified
from pycaffe_dist.layers.parameters import Spec, make_parameters
from pycaffe_dist.layers.scaled_batch_norm import Normalized
from pycaffe_dist.schema import caffe_pb2


def read_geometry(layer: Layer, spatial_axes: int) -> ConvolutionGeometry:
    """Return kernel, stride, pad, dilation and group of ``convolution_param``.

    Raises LayerError when a field is given a wrong number of times, twice, or is zero.
    """
    param = layer.param.convolution_param
    kernel = _per_axis(layer, param, "kernel_size", "kernel", spatial_axes, None)
    stride = _per_axis(layer, param, "stride", "stride", spatial_axes, 1)
    pad = _per_axis(layer, param, "pad", "pad", spatial_axes, 0)
    dilation = _per_axis(layer, param, "dilation", "", spatial_axes, 1)
    for field, values in (("kernel_size", kernel), ("stride", stride), ("dilation", dilation)):
        if 0 in values:
            raise layer.error(f"needs a {field} of at least 1, found {values}")
    return ConvolutionGeometry(kernel, stride, pad, dilation, param.group)


def _per_axis(
    layer: Layer, param: Any, field: str, stem: str, axes: int, default: int | None
) -> tuple[int, ...]:
    given = list(getattr(param, field))
    if stem and (param.HasField(f"{stem}_h") or param.HasField(f"{stem}_w")):
        if axes != 2:
            raise layer.error(f"{stem}_h and {stem}_w need 2 spatial axes, found {axes}")
        if given:
            raise layer.error(f"give {field} or {stem}_h and {stem}_w, not both")
        return getattr(param, f"{stem}_h"), getattr(param, f"{stem}_w")
    if not given and default is not None:
        given = [default]
    if len(given) not in (1, axes):
        raise layer.error(
            f"needs {field} once, or once for each of {axes} spatial axes, found {len(given)} times"
        )
    return tuple(given * axes if len(given) == 1 else given)


class ConvolutionBase(Layer):
    """The base of a convolution and its transpose: parameters and shapes.

    Each bottom is convolved with the same weights into its top.
    """

    bottoms = Arity(1, None)
    tops = Arity(1, None)
    equal_bottoms_and_tops = True
    overwrites_gradients = True
    transposed = False
    _plan: ConvolutionPlan

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.convolution_param
        self._axis = axis_of(self, bottom, param.axis)
        self._spatial_axes = bottom[0].ndim - self._axis - 1
        # Without spatial axes it is a 1×1 convolution on an image of one pixel.
        self._geometry = (
            read_geometry(self, self._spatial_axes)
            if self._spatial_axes
            else ConvolutionGeometry((1,), (1,), (0,), (1,), param.group)
        )
        channels = bottom[0].shape[self._axis]
        if param.num_output == 0:
            raise self.error("needs num_output of at least 1")
        for what, number in (("channels", channels), ("num_output", param.num_output)):
            if param.group == 0 or number % param.group:
                raise self.error(f"{what} {number} is not a multiple of group {param.group}")
        self._channels = channels
        rows, columns = param.num_output, channels
        if self.transposed:
            rows, columns = columns, rows
        weights = (rows, columns // param.group, *self._geometry.kernel[: self._spatial_axes])
        specs: list[Spec] = [(weights, param.weight_filler)]
        if param.bias_term:
            specs.append(((param.num_output,), param.bias_filler))
        make_parameters(self, *specs)
        self._plan_of: tuple[int, ...] | None = None

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != self._axis + 1 + self._spatial_axes or shape[self._axis] != self._channels:
            raise self.error(
                f"was made for {self._channels} channels on axis {self._axis} and "
                f"{self._spatial_axes} spatial axes, found bottom {describe(self, bottom, 0)}"
            )
        for index in range(1, len(bottom)):
            require_same_shape(self, bottom, 0, index)
        spatial = shape[self._axis + 1 :]
        output = self._output(bottom, spatial or (1,))[: self._spatial_axes]
        num_output = self.param.convolution_param.num_output
        for blob in top:
            blob.reshape(*shape[: self._axis], num_output, *output)
        if self._plan_of != shape:
            self._plan = self.make_plan(bottom[0], top[0])
            self._plan_of = shape

    def make_plan(self, bottom: Blob, top: Blob, **options: bool) -> ConvolutionPlan:
        """Return a plan for blobs of these shapes, with the plan's ``options``."""
        ours = self.param.convolution_param.engine == caffe_pb2.ConvolutionParameter.CAFFE
        kind = ConvolutionPlan if ours else LibraryConvolution
        images, weights, geometry = self.plan_shapes(bottom, top)
        return kind(images, weights, geometry, self.context.dtype, **options)

    def plan_shapes(
        self, bottom: Blob, top: Blob
    ) -> tuple[tuple[int, ...], tuple[int, ...], ConvolutionGeometry]:
        """Return the shapes of images and weights in plans, and the geometry."""
        images = self._flat((top if self.transposed else bottom).shape)
        return images, self.weights_shape(), self._geometry

    @property
    def channel_axis(self) -> int:
        """The axis of bottoms and tops that has the channels."""
        return self._axis

    @property
    def can_add(self) -> bool:
        """Whether there are plans whose forward adds to its output."""
        return self._plan.can_add

    def _output(self, bottom: list[Blob], spatial: tuple[int, ...]) -> tuple[int, ...]:
        """Return the top's spatial shape; raises LayerError when it would be empty."""
        raise NotImplementedError

    def _flat(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(images, channels, *spatial) of a blob's shape."""
        spatial = shape[self._axis + 1 :] or (1,)
        return (math.prod(shape[: self._axis]), shape[self._axis], *spatial)

    def weights_shape(self) -> tuple[int, ...]:
        """Return the shape of the weights in plans."""
        shape = self.blobs[0].shape
        return shape if self._spatial_axes else (*shape, 1)

    def images(self, blob: Blob, diff: bool = False) -> Any:
        """Return a blob's data or diff as plans take it."""
        images = blob.diff if diff else blob.data
        is_flat = self._axis == 1 and self._spatial_axes
        return images if is_flat else images.reshape(self._flat(blob.shape))

    def _weights(self, diff: bool = False) -> Any:
        weights = self.blobs[0].diff if diff else self.blobs[0].data
        return weights if self._spatial_axes else weights.reshape(self.weights_shape())


@register("Convolution")
class Convolution(ConvolutionBase):
    """y = x * W + b, as a cross-correlation."""

    @property
    def only_kernels(self) -> bool:  # type: ignore[override]
        """Unless NumPy sets some gradients to 0."""
        return self.param.connectivity_mode == self.param.CONNECTED

    def _output(self, bottom: list[Blob], spatial: tuple[int, ...]) -> tuple[int, ...]:
        return output_of(self, bottom, self._geometry, spatial)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._convolve(bottom, top, None)

    def joined(self, following: Sequence[Layer]) -> Joined | None:
        """Join a rectifier, or a normalization and what it joins."""
        first = following[0]
        if first.rectifier_slope is not None:
            return Rectified(self, first, self._convolve, self._spread_back)
        # Without backward the normalization makes no copy to write to.
        if not isinstance(first, ChannelNorm) or len(following) == 1 or self.context.forward_only:
            return None
        others = first.joined(following[1:])
        return Normalized(self, others, self._convolve) if others else None

    def _convolve(self, bottom: list[Blob], top: list[Blob], slope: float | None) -> None:
        bias = self.blobs[1].data if len(self.blobs) > 1 else None
        for x, y in zip(bottom, top):
            self._plan.forward(self.images(x), self._weights(), bias, self.images(y), slope)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self._spread_back(top, propagate_down, bottom, None)

    def _spread_back(
        self,
        top: list[Blob],
        propagate_down: list[bool],
        bottom: list[Blob],
        slope: float | None,
    ) -> None:
        """Run backward; with a ``slope`` rectify the tops' diffs first."""
        for number, (x, y, wanted) in enumerate(zip(bottom, top, propagate_down)):
            adds = [number > 0 or index not in self.overwritten for index in (0, 1)]
            dy = self.images(y, diff=True)
            if len(self.blobs) > 1 and self.param_propagate_down[1]:
                db = self.blobs[1].diff
                if slope is None:
                    bias_gradient(dy, db, adds[1])
                else:
                    rectified_bias_gradient(self.images(y), dy, db, slope, adds[1])
            elif slope is not None:
                relu_backward(self.images(y), dy, dy, slope)
            if self.param_propagate_down[0]:
                dw = self._weights(diff=True)
                self._plan.backward_weights(self.images(x), dy, dw, adds[0])
            if wanted:
                self._plan.backward_data(dy, self._weights(), self.images(x, diff=True))
        if self.param_propagate_down[0]:
            disconnect(self, self._geometry.group)


@register("Deconvolution")
class Deconvolution(ConvolutionBase):
    """The transpose of a convolution: each bottom pixel spreads its kernel over the top."""

    transposed = True

    def _output(self, bottom: list[Blob], spatial: tuple[int, ...]) -> tuple[int, ...]:
        geometry = self._geometry
        output = tuple(
            stride * (size - 1) + dilation * (kernel - 1) + 1 - 2 * pad
            for size, kernel, stride, pad, dilation in zip(
                spatial, geometry.kernel, geometry.stride, geometry.pad, geometry.dilation
            )
        )
        if min(output) < 1:
            raise self.error(
                f"kernel {geometry.kernel} with pad {geometry.pad} leaves nothing of bottom "
                f"{describe(self, bottom, 0)}"
            )
        return output

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        for x, y in zip(bottom, top):
            self._plan.backward_data(self.images(x), self._weights(), self.images(y))
            if len(self.blobs) > 1:
                add_bias(self.images(y), self.blobs[1].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        for number, (x, y, wanted) in enumerate(zip(bottom, top, propagate_down)):
            adds = [number > 0 or index not in self.overwritten for index in (0, 1)]
            dy = self.images(y, diff=True)
            if len(self.blobs) > 1 and self.param_propagate_down[1]:
                bias_gradient(dy, self.blobs[1].diff, adds[1])
            if self.param_propagate_down[0]:
                dw = self._weights(diff=True)
                self._plan.backward_weights(dy, self.images(x), dw, adds[0])
            if wanted:
                self._plan.forward(dy, self._weights(), None, self.images(x, diff=True))
        if self.param_propagate_down[0]:
            disconnect(self, self._geometry.group)


@register("Im2col")
class Im2col(Layer):
    """The patches under a convolution's kernel as channels: (N, C·kernel, *output)."""

    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._axis = axis_of(self, bottom, self.param.convolution_param.axis)
        spatial_axes = bottom[0].ndim - self._axis - 1
        if spatial_axes < 1:
            raise self.error(
                f"needs a spatial axis behind axis {self._axis}, found bottom "
                f"{describe(self, bottom, 0)}"
            )
        self._geometry = read_geometry(self, spatial_axes)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != self._axis + 1 + len(self._geometry.kernel):
            raise self.error(
                f"was made for {len(self._geometry.kernel)} spatial axes, found bottom "
                f"{describe(self, bottom, 0)}"
            )
        channels, spatial = shape[self._axis], shape[self._axis + 1 :]
        output_of(self, bottom, self._geometry, spatial)
        self._plan = Im2colPlan(spatial, self._geometry)
        columns = channels * math.prod(self._geometry.kernel)
        top[0].reshape(*shape[: self._axis], columns, *self._plan.output)
        images = math.prod(shape[: self._axis])
        self._shapes = (images, channels, *spatial), (images, columns, *self._plan.output)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = self._shapes
        im2col(bottom[0].data.reshape(x), top[0].data.reshape(y), self._plan)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            x, y = self._shapes
            col2im(top[0].diff.reshape(y), bottom[0].diff.reshape(x), self._plan)
