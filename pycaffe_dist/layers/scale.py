"""Scale and Bias: products and sums with a blob that is repeated over the other axes."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.channel_affine import affine, affine_in_place, gradient_sums
from pycaffe_dist.kernels.normalization import AffineGradients, backward_sums
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import axis_of, describe
from pycaffe_dist.layers.parameters import constant, make_parameters
from pycaffe_dist.schema import caffe_pb2


class Broadcast(Layer):
    """The base of layers whose second operand spans axes ``axis`` and on of the first.

    The operand is bottom[1], or a parameter of ``num_axes`` axes (-1: all remaining axes; 0: one
    number).
    """

    bottoms = Arity(1, 2)
    in_place = True

    def _operand_shape(
        self, bottom: list[Blob], param: caffe_pb2.ScaleParameter | caffe_pb2.BiasParameter
    ) -> tuple[int, ...]:
        axis = axis_of(self, bottom, param.axis)
        shape = bottom[0].shape[axis:]
        if param.num_axes == -1:
            return shape
        if not 0 <= param.num_axes <= len(shape):
            raise self.error(
                f"num_axes {param.num_axes} from axis {axis} does not fit bottom "
                f"{describe(self, bottom, 0)}; -1 takes all axes that are left"
            )
        return shape[: param.num_axes]

    def _lay_out(self, bottom: list[Blob], operand: Blob, axis: int) -> tuple[int, int, int]:
        """Return bottom[0] as (outer, operand, inner)."""
        start = axis_of(self, bottom, axis) if operand.ndim else 0
        stop = start + operand.ndim
        if bottom[0].shape[start:stop] != operand.shape:
            other = describe(self, bottom, 1) if len(bottom) > 1 else f"parameter {operand.shape}"
            raise self.error(
                f"{other} does not fit bottom {describe(self, bottom, 0)} from axis {start} on"
            )
        return bottom[0].count_of(0, start), operand.count, bottom[0].count_of(stop)


@register("Scale")
class Scale(Broadcast):
    """y = x·s, with bias_term y = x·s + b; s is a parameter or bottom[1], b a parameter."""

    overwrites_gradients = True

    @property
    def only_kernels(self) -> bool:  # type: ignore[override]
        """Unless s is a bottom, whose gradient NumPy copies."""
        return len(self.param.bottom) == 1

    @property
    def backward_needs_bottom(self) -> Need:  # type: ignore[override]
        """In place, the layer has its own copy; s = bottom[1] is always needed."""
        in_place = self.param.bottom[0] == self.param.top[0]
        return Need.NONE if in_place and len(self.param.bottom) == 1 else Need.VALUE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.scale_param
        shape = bottom[1].shape if len(bottom) > 1 else self._operand_shape(bottom, param)
        specs = []
        if len(bottom) == 1:
            specs.append((shape, param.filler if param.HasField("filler") else constant(1)))
        if param.bias_term:
            specs.append((shape, param.bias_filler))
        if specs:
            make_parameters(self, *specs)
        # A copy of the bottom's data, if the layer works in place.
        self.copy: Blob | None = None

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        scale = bottom[1] if len(bottom) > 1 else self.blobs[0]
        self._shape = self._lay_out(bottom, scale, self.param.scale_param.axis)
        if bottom[0] is not top[0]:
            top[0].reshape_like(bottom[0])
        elif not self.context.forward_only:
            self.copy = self.copy or self.new_blob()
            self.copy.reshape_like(bottom[0])
        self._zero = xp().zeros(scale.count, scale.dtype)
        self._sums = xp().zeros(scale.count), xp().zeros(scale.count)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, operands = bottom[0].data.reshape(self._shape), (self._zero, *self.operands(bottom))
        if self.copy is not None:
            affine_in_place(x, self.copy.data.reshape(self._shape), *operands)
        else:
            y = x if bottom[0] is top[0] else top[0].data.reshape(self._shape)
            affine(x, y, *operands)

    def scales_channels(self, shape: tuple[int, int, int]) -> bool:
        """Tell whether s is a parameter per channel of bottoms (outer, channels, inner)."""
        return len(self.param.bottom) == 1 and self._shape == shape

    def channel_affine(self, bottom: Blob) -> tuple[np.ndarray, np.ndarray] | None:
        """Return s and b if s is a parameter per channel."""
        channels = bottom.shape[1] if bottom.ndim > 1 else 0
        if not self.scales_channels((bottom.count_of(0, 1), channels, bottom.count_of(2))):
            return None
        scale, bias = self.operands([bottom])
        return scale.astype(np.float64), bias.astype(np.float64)

    def operands(self, bottom: list[Blob]) -> tuple[np.ndarray, np.ndarray]:
        """Return s and b, zero without bias_term, as vectors."""
        scale = (bottom[1] if len(bottom) > 1 else self.blobs[0]).data.reshape(-1)
        has_bias = self.param.scale_param.bias_term
        return scale, self.blobs[-1].data.reshape(-1) if has_bias else self._zero

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        shape, learnt = self._shape, len(bottom) == 1
        dy = top[0].diff.reshape(shape)
        if any(self.param_propagate_down) or (not learnt and propagate_down[1]):
            x = (self.copy or bottom[0]).data.reshape(shape)
            backward_sums(x, dy, self._zero, *self._sums, affine=self.gradients())
        if not learnt and propagate_down[1]:
            bottom[1].diff.reshape(-1)[...] = self._sums[1]
        if propagate_down[0]:
            scale = (self.blobs[0] if learnt else bottom[1]).data.reshape(-1)
            dx = dy if bottom[0] is top[0] else bottom[0].diff.reshape(shape)
            affine(dy, dx, self._zero, scale, self._zero)

    def gradients(self, factor: np.ndarray | None = None) -> AffineGradients:
        """Return the diffs of b and s, if learnt; sums of dy·x are times ``factor``."""
        bias = scale = None
        if self.param.scale_param.bias_term and self.param_propagate_down[-1]:
            bias = self.blobs[-1].diff.reshape(-1)
        if len(self.param.bottom) == 1 and self.param_propagate_down[0]:
            scale = self.blobs[0].diff.reshape(-1)
        adds = len(self.blobs) - 1 not in self.overwritten, 0 not in self.overwritten
        return AffineGradients(factor, bias, scale, *adds)


@register("Bias")
class Bias(Broadcast):
    """y = x + b; b is a parameter or bottom[1]."""

    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if len(bottom) == 1:
            param = self.param.bias_param
            make_parameters(self, (self._operand_shape(bottom, param), param.filler))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        bias = bottom[1] if len(bottom) > 1 else self.blobs[0]
        self._shape = self._lay_out(bottom, bias, self.param.bias_param.axis)
        if bottom[0] is not top[0]:
            top[0].reshape_like(bottom[0])
        self._zero, self._one = (xp().full(bias.count, value, bias.dtype) for value in (0, 1))
        self._sums = xp().zeros(bias.count), xp().zeros(bias.count)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        bias = (bottom[1] if len(bottom) > 1 else self.blobs[0]).data.reshape(-1)
        x = bottom[0].data.reshape(self._shape)
        y = x if bottom[0] is top[0] else top[0].data.reshape(self._shape)
        affine(x, y, self._zero, self._one, bias)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        learnt = len(bottom) == 1
        if propagate_down[0] and bottom[0] is not top[0]:
            np.copyto(bottom[0].diff, top[0].diff)
        if self.param_propagate_down[0] if learnt else propagate_down[1]:
            dy = top[0].diff.reshape(self._shape)
            gradient_sums(dy, dy, self._zero, *self._sums)
            if learnt:
                self.blobs[0].diff.reshape(-1)[...] += self._sums[0]
            else:
                bottom[1].diff.reshape(-1)[...] = self._sums[0]
