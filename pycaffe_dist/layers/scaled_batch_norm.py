"""Normalization, scale and maybe a rectifier in one: fewer passes over memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from pycaffe_dist.device import xp
from pycaffe_dist.kernels.channel_affine import affine, affine_in_place
from pycaffe_dist.kernels.normalization import AffineGradients, backward_sums
from pycaffe_dist.layers.joined import Joined

if TYPE_CHECKING:
    from pycaffe_dist.blob import Blob
    from pycaffe_dist.layers.base import Layer
    from pycaffe_dist.layers.channel_norm import ChannelNorm
    from pycaffe_dist.layers.scale import Scale


class Operands(Protocol):
    """A factor and a bias for each channel, and their gradients, as `Scale` has them."""

    def operands(self, bottom: list[Blob]) -> tuple[np.ndarray, np.ndarray]:
        """Return factor and bias as vectors."""

    def gradients(self, factor: np.ndarray | None = None) -> AffineGradients:
        """Return the diffs of bias and factor, if learnt; sums of dy·x are times ``factor``."""


class ScaledNorm:
    """y = (x - mean)·(factor / deviation) + bias, then rectified if there is a ``slope``.

    (x - mean) / deviation is never stored: all gradients need only two sums over dy, and one pass
    that sets dx.
    """

    def __init__(self, norm: ChannelNorm, scale: Operands):
        self._norm, self._scale = norm, scale
        shift = norm.normalization.shift
        self._product = xp().zeros_like(shift)
        self._sums = xp().zeros(shift.shape), xp().zeros(shift.shape)

    def forward(self, bottom: list[Blob], top: list[Blob], slope: float | None) -> None:
        """Measure x, and set y in one pass; in place, also copy x."""
        factor, bias = self._scale.operands(top)
        normalization = self._norm.measure(bottom[0], factor, self._product)
        self._bottom, shape = bottom[0], normalization.shape
        x, operands = bottom[0].data.reshape(shape), (normalization.shift, self._product, bias)
        if self._norm.copy is not None:
            affine_in_place(x, self._norm.copy.data.reshape(shape), *operands, slope)
        else:
            y = x if bottom[0] is top[0] else top[0].data.reshape(shape)
            affine(x, y, *operands, slope)

    @property
    def source(self) -> Blob:
        """The blob that still has the values of x."""
        return self._norm.copy or self._bottom

    def sum_up(self, top: Blob, slope: float | None) -> None:
        """Rectify dy, and add its sums to the gradients of factor and bias."""
        normalization = self._norm.normalization
        shape, shift = normalization.shape, normalization.shift
        x, dy = self.source.data.reshape(shape), top.diff.reshape(shape)
        backward_sums(
            *(x, dy, shift, *self._sums),
            affine=self._scale.gradients(normalization.scale),
            terms=None if self._norm.fixed else normalization.terms(),
            sign=None if slope is None else top.data.reshape(shape),
            slope=1.0 if slope is None else slope,
        )

    def set_gradient(self, top: Blob, bottom: Blob) -> None:
        """Set dx from dy and the sums of `sum_up`."""
        x, dy, dx = self.source.data, top.diff, bottom.diff
        self._norm.set_gradient(x, dy, dx, self._product)


class ScaledBatchNorm(Joined):
    """BatchNorm, the next Scale and maybe a ``rectifier``."""

    def __init__(self, norm: ChannelNorm, scale: Scale, rectifier: Layer | None = None):
        super().__init__(norm, scale, *([rectifier] if rectifier else []))
        self._norm, self._scale = norm, scale
        self._slope = rectifier.rectifier_slope if rectifier else None
        self._scaled = ScaledNorm(norm, scale)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Measure x, and set y in one pass; in place, also copy x."""
        self._scaled.forward(bottom, top, self._slope)

    def backward(
        self, position: int, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        """For the Scale, rectify and sum dy; for BatchNorm, set dx."""
        if position == 1:
            self._scaled.sum_up(top[0], self._slope)
        elif position == 0 and propagate_down[0]:
            self._scaled.set_gradient(top[0], bottom[0])

    def part(self, top: list[Blob]) -> None:
        """Store the Scale's bottom."""
        self._scale.reshape(top, top)
        if self._scale.copy is not None:
            source = self._scaled.source.data
            self._norm.normalization.forward(source, self._scale.copy.data)


class RectifiedNorm(Joined):
    """A normalization with a factor and a bias of its own, and a rectifier."""

    def __init__(self, norm: ChannelNorm, rectifier: Layer):
        super().__init__(norm, rectifier)
        self._norm, self._slope = norm, rectifier.rectifier_slope

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Rectify results before storing them."""
        self._norm.forward_scaled(bottom, top, self._slope)

    def backward(
        self, position: int, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        """Rectify dy while it is summed, all at the turn of the normalization."""
        if position == 0:
            self._norm.backward_scaled(top, propagate_down, bottom, self._slope)
