"""Noise: random numbers added in training."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.uniform import uniform
from pycaffe_dist.layers.base import Layer, Need, is_test, register
from pycaffe_dist.layers.random_key import RandomKey


@register("Noise")
class Noise(Layer):
    """In training, adds a bias and Gaussian noise, or uniform noise up to uniform_range.

    The deviation is gaussian_std times the root mean square of all values, which the gradient takes
    for a constant.  In the TEST phase the top is the bottom.  Follows happynear/caffe-windows.
    """

    in_place = True
    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._options = param = self.param.noise_param
        if not param.HasField("gaussian_std") and not param.HasField("uniform_range"):
            raise self.error("needs gaussian_std or uniform_range")
        self._key = RandomKey(self.rng("noise"))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape_like(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if not is_test(self.phase):
            x = bottom[0].data
            np.add(x, self._noise(x), out=top[0].data, casting="same_kind")
        elif top[0] is not bottom[0]:
            np.copyto(top[0].data, bottom[0].data)

    def _noise(self, x: Any) -> Any:
        param = self._options
        self._key.draw()
        gaussian = param.HasField("gaussian_std")
        numbers = xp().empty((1 + gaussian, *x.shape), self.context.parameter_dtype)
        uniform(numbers, self._key.array)
        if not gaussian:
            return (2 * numbers[0] - 1) * param.uniform_range + param.bias
        # Box and Muller, 1958.
        normal = np.sqrt(-2 * np.log1p(-numbers[0])) * np.cos(2 * np.pi * numbers[1])
        size = np.sqrt(np.square(x, dtype=numbers.dtype).mean())
        return normal * (param.gaussian_std * size) + param.bias

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0] and top[0] is not bottom[0]:
            np.copyto(bottom[0].diff, top[0].diff)
