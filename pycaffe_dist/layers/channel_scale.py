"""ChannelScale: one factor for all channels of a position."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import Arity, Layer, register
from pycaffe_dist.layers.checking import mismatch


@register("ChannelScale")
class ChannelScale(Layer):
    """The first bottom (N, C, …) times the second, which has one factor for each N and position.

    Without do_forward the top is the first bottom; without do_backward_feature its gradient is the
    top's, and without do_backward_scale the factors' is 0.  Follows happynear/caffe-windows; its
    global_scale is not supported.
    """

    bottoms = Arity(2, 2)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom[0].ndim < 2 or bottom[1].count * bottom[0].shape[1] != bottom[0].count:
            raise mismatch(self, bottom, 0, 1, "need one factor for all channels of a position")
        top[0].reshape_like(bottom[0])
        self._shape = *bottom[0].shape[:2], bottom[0].count_of(2)

    def _factors(self, bottom: list[Blob]) -> np.ndarray:
        samples, _, positions = self._shape
        return bottom[1].data.reshape(samples, 1, positions)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = (array.reshape(self._shape) for array in (bottom[0].data, top[0].data))
        if self.param.channel_scale_param.do_forward:
            np.multiply(x, self._factors(bottom), out=y)
        else:
            np.copyto(y, x)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        param, dy = self.param.channel_scale_param, top[0].diff.reshape(self._shape)
        if propagate_down[1]:
            if param.do_backward_scale:
                x = bottom[0].data.reshape(self._shape)
                bottom[1].diff[...] = np.einsum("ncp,ncp->np", x, dy).reshape(bottom[1].shape)
            else:
                bottom[1].diff.fill(0)
        if propagate_down[0]:
            dx = bottom[0].diff.reshape(self._shape)
            if param.do_backward_feature:
                np.multiply(dy, self._factors(bottom), out=dx)
            else:
                np.copyto(dx, dy)
