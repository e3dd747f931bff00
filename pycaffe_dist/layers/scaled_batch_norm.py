"""Normalization, scale and maybe a rectifier in one: fewer passes over memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pycaffe_dist.kernels.normalization import (
    Affine,
    AffineGradients,
    Rectifier,
    backward_sums,
)
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

    def forward(self, bottom: list[Blob], top: list[Blob], slope: float | None) -> None:
        """Measure x and set y, channel by channel; in place, also copy x."""
        self._bottom = bottom[0]
        self._norm.normalize(bottom[0], top[0], self._following(top[0], slope))

    def _following(self, top: Blob, slope: float | None) -> Affine:
        return Affine(*self._scale.operands([top]), slope)

    @property
    def source(self) -> Blob:
        """The blob that still has the values of x."""
        return self._norm.copy or self._bottom

    def spread_back(self, top: Blob, bottom: Blob, slope: float | None) -> None:
        """Set dx and the gradients of factor and bias, channel by channel."""
        normalization = self._norm.normalization
        gradients = self._scale.gradients(normalization.result.scale)
        arrays = self.source.data, top.diff, bottom.diff
        normalization.backward(*arrays, self._following(top, slope), gradients)

    def add_up(self, top: Blob, slope: float | None) -> None:
        """Set the gradients of factor and bias, and the terms of `set_gradient`."""
        normalization = self._norm.normalization
        shape, (_, _, shift, scale, product) = normalization.shape, normalization.result
        x, dy = self.source.data.reshape(shape), top.diff.reshape(shape)
        bias = self._following(top, slope).bias
        backward_sums(
            *(x, dy, shift, *normalization.sums),
            affine=self._scale.gradients(scale),
            terms=None if self._norm.fixed else normalization.terms(),
            rectifier=None if slope is None else Rectifier(product, bias, slope),
        )

    def set_gradient(self, top: Blob, bottom: Blob, slope: float | None) -> None:
        """Set dx from dy and the sums of `add_up`."""
        normalization, dy, dx = self._norm.normalization, top.diff, bottom.diff
        if self._norm.fixed and slope is None:
            normalization.set_fixed_gradient(dy, dx)
        else:
            # If statistics are fixed, nobody sets the terms: they are zero.
            following = self._following(top, slope)
            normalization.set_gradient(self.source.data, dy, dx, following)


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
        """For the Scale, set its gradients, in place dx, too; for BatchNorm, else set dx."""
        if position == 1:
            whole = self._norm.copy is not None and propagate_down[0] and not self._norm.fixed
            self._has_gradient = whole
            if whole:
                self._scaled.spread_back(top[0], bottom[0], self._slope)
            else:
                self._scaled.add_up(top[0], self._slope)
        elif position == 0 and propagate_down[0] and not self._has_gradient:
            self._scaled.set_gradient(top[0], bottom[0], self._slope)

    def part(self, top: list[Blob]) -> None:
        """Store the Scale's bottom."""
        self._scale.reshape(top, top)
        if self._scale.copy is not None:
            self._norm.normalization.restore(self._scaled.source.data, self._scale.copy.data)


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


class Normalized(Joined):
    """A layer whose ``forward`` writes to the copy of a normalization in place, and ``others``.

    The normalization, the first of the others, need not copy its bottom then.
    """

    def __init__(
        self,
        layer: Layer,
        others: Joined,
        forward: Callable[[list[Blob], list[Blob], float | None], None],
    ):
        super().__init__(layer, *others.layers)
        self._others, self._forward = others, forward

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Write to the copy, and normalize from there."""
        norm: ChannelNorm = self.layers[1]  # type: ignore[assignment]
        if norm.copy is None or norm.copy.shape != top[0].shape:
            norm.reshape(top, top)
        assert norm.copy is not None  # it works in place
        copy = [norm.copy]
        self._forward(bottom, copy, None)
        self._others.forward(copy, top)

    def backward(
        self, position: int, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        """Run the layer's own backward, or the others' share."""
        if position == 0:
            self.layers[0].backward(top, propagate_down, bottom)
        else:
            self._others.backward(position - 1, top, propagate_down, bottom)

    def part(self, top: list[Blob]) -> None:
        """Store the values that the others need."""
        self._others.part(top)
