"""Axpy: a scaled blob plus another."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.channel_affine import affine, gradient_sums
from pycaffe_dist.kernels.eltwise import scaled_sum
from pycaffe_dist.layers.base import Arity, Layer, register
from pycaffe_dist.layers.checking import mismatch, require_same_shape


@register("Axpy")
class Axpy(Layer):
    """y = a·x + b with a number a for each channel of each sample, as in hujie-frank/SENet.

    Bottoms: a (N, C) or (N, C, 1, 1), x (N, C, …), and b of x's shape.
    """

    bottoms = Arity(3, 3)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) < 2 or shape[:2] != bottom[1].shape[:2] or bottom[0].count_of(2) != 1:
            raise mismatch(
                self, bottom, 0, 1, "do not fit: the first needs one number per sample and channel"
            )
        require_same_shape(self, bottom, 1, 2)
        top[0].reshape_like(bottom[1])
        # The channels of all samples, as those of one sample.
        self._shape = 1, bottom[0].count, bottom[1].count_of(2)
        self._zero = xp().zeros(bottom[0].count, self.context.dtype)
        self._sums = xp().zeros(bottom[0].count), xp().zeros(bottom[0].count)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        a, x, b, y = (blob.data for blob in (*bottom, *top))
        rows = self._shape[1:]
        scaled_sum(a.reshape(-1), x.reshape(rows), b.reshape(rows), y.reshape(rows))

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dy = top[0].diff.reshape(self._shape)
        if propagate_down[0]:
            gradient_sums(bottom[1].data.reshape(self._shape), dy, self._zero, *self._sums)
            bottom[0].diff.reshape(-1)[...] = self._sums[1]
        if propagate_down[1]:
            a, dx = bottom[0].data.reshape(-1), bottom[1].diff.reshape(self._shape)
            affine(dy, dx, self._zero, a, self._zero)
        if propagate_down[2]:
            np.copyto(bottom[2].diff, top[0].diff)
