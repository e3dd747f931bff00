"""PReLU: a rectifier whose slope for negative values is learnt."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.activation import prelu_forward, prelu_slope_gradient
from pycaffe_dist.layers.base import Layer, register
from pycaffe_dist.layers.checking import describe
from pycaffe_dist.layers.parameters import constant, make_parameters


@register("PReLU")
class PReLU(Layer):
    """y = x where x > 0, else slope·x with a slope per channel, or one if channel_shared.

    (He et al., Delving Deep into Rectifiers, 2015.)
    """

    in_place = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.prelu_param
        if bottom[0].ndim < 2:
            raise self.error(f"needs at least 2 axes, found bottom {describe(self, bottom, 0)}")
        self._channels = bottom[0].shape[1]
        filler = param.filler if param.HasField("filler") else constant(0.25)
        make_parameters(self, (() if param.channel_shared else (self._channels,), filler))
        self._copy: Blob | None = None
        self._gradient = xp().empty(self._channels)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom[0].ndim < 2 or bottom[0].shape[1] != self._channels:
            raise self.error(
                f"was made for {self._channels} channels, found bottom {describe(self, bottom, 0)}"
            )
        self._shape = bottom[0].shape[0], self._channels, bottom[0].count_of(2)
        top[0].reshape_like(bottom[0])
        if bottom[0] is top[0]:
            self._copy = self._copy or self.new_blob()
            self._copy.reshape_like(bottom[0])

    def _slopes(self) -> np.ndarray:
        return xp().ascontiguousarray(xp().broadcast_to(self.blobs[0].data, self._channels))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x = bottom[0].data
        if self._copy is not None:
            np.copyto(self._copy.data, x)
            x = self._copy.data
        x = x.reshape(self._shape)
        prelu_forward(x, x, top[0].data.reshape(self._shape), self._slopes())

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        x = (self._copy or bottom[0]).data.reshape(self._shape)
        dy = top[0].diff.reshape(self._shape)
        if self.param_propagate_down[0]:
            prelu_slope_gradient(x, dy, self._gradient)
            shared = self.param.prelu_param.channel_shared
            self.blobs[0].diff[...] += self._gradient.sum() if shared else self._gradient
        if propagate_down[0]:
            prelu_forward(x, dy, bottom[0].diff.reshape(self._shape), self._slopes())
