"""Fusion of BatchNorm, the next Scale and maybe a rectifier: fewer passes over memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.device import xp
from pycaffe_dist.kernels.channel_affine import (
    affine,
    affine_in_place,
    gradient_sums,
    rectified_gradient_sums,
)
from pycaffe_dist.layers.joined import Joined

if TYPE_CHECKING:
    from pycaffe_dist.blob import Blob
    from pycaffe_dist.layers.base import Layer
    from pycaffe_dist.layers.batch_norm import BatchNorm
    from pycaffe_dist.layers.scale import Scale


class ScaledBatchNorm(Joined):
    """y = (x - mean)·(factor / deviation) + bias, then rectified if there is a ``rectifier``.

    The Scale's bottom, (x - mean) / deviation, is never stored: both layers' gradients need only
    two sums over dy, and one pass that sets dx.
    """

    def __init__(self, norm: BatchNorm, scale: Scale, rectifier: Layer | None = None):
        super().__init__(norm, scale, *([rectifier] if rectifier else []))
        self._norm, self._scale = norm, scale
        self._slope = rectifier.rectifier_slope if rectifier else None
        shift = norm.normalization.shift
        self._product = xp().zeros_like(shift)
        self._sums = xp().zeros(shift.shape), xp().zeros(shift.shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Measure x, and set y in one pass; in place, also copy x."""
        normalization = self._norm.measure(bottom[0])
        factor, bias = self._scale.operands(top)
        np.multiply(normalization.scale, factor, out=self._product)
        self._bottom, shape = bottom[0], normalization.shape
        x, operands = bottom[0].data.reshape(shape), (normalization.shift, self._product, bias)
        if self._norm.copy is not None:
            affine_in_place(x, self._norm.copy.data.reshape(shape), *operands, self._slope)
        else:
            affine(x, top[0].data.reshape(shape), *operands, self._slope)

    def backward(
        self, position: int, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        """For the Scale, rectify and sum dy; for BatchNorm, set dx."""
        if position == 1:
            self._sum_up(top[0])
        elif position == 0 and propagate_down[0]:
            x, dy, dx = self._source.data, top[0].diff, bottom[0].diff
            self._norm.set_gradient(x, dy, dx, self._sums, self._product)

    def part(self, top: list[Blob]) -> None:
        """Store the Scale's bottom."""
        self._scale.reshape(top, top)
        normalization = self._norm.normalization
        if self._scale.copy is not None:
            normalization.forward(self._source.data, self._scale.copy.data)

    @property
    def _source(self) -> Blob:
        """The blob that still has the values of x."""
        return self._norm.copy or self._bottom

    def _sum_up(self, top: Blob) -> None:
        normalization = self._norm.normalization
        shape, shift = normalization.shape, normalization.shift
        x, dy = self._source.data.reshape(shape), top.diff.reshape(shape)
        if self._slope is not None:
            sign = top.data.reshape(shape)
            rectified_gradient_sums(sign, x, dy, shift, self._slope, *self._sums)
        else:
            gradient_sums(x, dy, shift, *self._sums)
        sum_dy, sum_dyx = self._sums
        self._scale.add_gradients(sum_dy, sum_dyx, normalization.scale)
