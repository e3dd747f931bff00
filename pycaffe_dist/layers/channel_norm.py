"""The base of normalizations of channels by mean and variance, with or without a learnt scale."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.channel_affine import affine, affine_in_place, normalize_gradient
from pycaffe_dist.kernels.normalization import (
    Affine,
    AffineGradients,
    GradientTerms,
    RunningSums,
    Statistics,
    backward_sums,
    normalize,
    normalize_backward,
    recall,
)
from pycaffe_dist.layers.base import Layer
from pycaffe_dist.layers.checking import describe
from pycaffe_dist.layers.joined import Joined
from pycaffe_dist.layers.scale import Scale
from pycaffe_dist.layers.scaled_batch_norm import RectifiedNorm, ScaledBatchNorm, ScaledNorm

NO_GRADIENTS = AffineGradients(None, None, None)


class Normalization:
    """y = (x - shift)·product + bias per channel of (outer, channels, inner), and its gradient.

    The product is the scale times a factor.  These vectors have the parameters' dtype: the data's
    dtype, but at least float32.  Mean and variance are float64.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: np.dtype):
        self.shape = shape
        channels, dtype = shape[1], np.result_type(dtype, np.float32)
        vectors = (xp().zeros(channels, dtype) for _ in range(3))
        self.result = Statistics(xp().zeros(channels), xp().zeros(channels), *vectors)
        self._zero, self._offset, self._slope = (xp().zeros(channels, dtype) for _ in range(3))
        self.plain = Affine(None, self._zero, None)
        self.sums = xp().zeros(channels), xp().zeros(channels)

    def fit(
        self,
        x: np.ndarray,
        y: np.ndarray,
        kept: np.ndarray | None,
        running: tuple[RunningSums | None, float],
        following: Affine,
    ) -> None:
        """Measure x, add to the running sums, set y; ``running`` are the sums and eps."""
        source, target, copy = self._laid_out(x, y, kept)
        sums, eps = running
        normalize(source, target, copy, self.result, sums, eps, following)

    def recall(self, running: RunningSums, eps: float, factor: np.ndarray | None) -> None:
        """Take the statistics from the running sums."""
        means, variances, weight, *_ = running
        recall(means, variances, weight, eps, self.result, factor)

    def forward(
        self, x: np.ndarray, y: np.ndarray, kept: np.ndarray | None, following: Affine
    ) -> None:
        """Set y; it may be x, and ``kept``, if given, then gets a copy of x."""
        source, target, copy = self._laid_out(x, y, kept)
        vectors = self.result.shift, self.result.product, following.bias, following.slope
        if copy is not None:
            affine_in_place(source, copy, *vectors)
        else:
            affine(source, target, *vectors)

    def restore(self, x: np.ndarray, y: np.ndarray) -> None:
        """Set y to (x - shift)·scale, and forget the factor."""
        self.result.product[...] = self.result.scale
        self.forward(x, y, None, self.plain)

    def backward(
        self,
        x: np.ndarray,
        dy: np.ndarray,
        dx: np.ndarray,
        following: Affine,
        gradients: AffineGradients = NO_GRADIENTS,
    ) -> None:
        """Set dx of `fit`, and the gradients of the factor and the bias; dx may be dy."""
        source, target, _ = self._laid_out(dy, dx)
        arrays = x.reshape(self.shape), source, target
        terms = self.terms()
        normalize_backward(*arrays, self.result, self.sums, gradients, terms, following)

    def _laid_out(self, x: np.ndarray, y: np.ndarray, kept: np.ndarray | None = None) -> tuple:
        source = x.reshape(self.shape)
        target = source if x is y else y.reshape(self.shape)
        return source, target, None if kept is None else kept.reshape(self.shape)

    def terms(self, spread: bool = True) -> GradientTerms:
        """Return the terms that `set_gradient` needs, for `backward_sums` to set."""
        return GradientTerms(self.result.scale, spread, self._offset, self._slope)

    def add_up(self, x: np.ndarray, dy: np.ndarray, terms: GradientTerms) -> None:
        """Find the terms from sums over dy."""
        arrays = x.reshape(self.shape), dy.reshape(self.shape), self.result.shift
        backward_sums(*arrays, *self.sums, terms=terms)

    def set_gradient(
        self, x: np.ndarray, dy: np.ndarray, dx: np.ndarray, following: Affine
    ) -> None:
        """Set dx from the terms; dx may be dy."""
        source, target, _ = self._laid_out(dy, dx)
        vectors = self.result.shift, self.result.product, self._offset, self._slope
        bias, slope = following.bias, following.slope
        normalize_gradient(x.reshape(self.shape), source, target, *vectors, bias, slope)

    def set_fixed_gradient(self, dy: np.ndarray, dx: np.ndarray) -> None:
        """Set dx if shift and product do not depend on x; dx may be dy."""
        source, target, _ = self._laid_out(dy, dx)
        affine(source, target, self._zero, self.result.product, self._zero)


class OwnScale:
    """The factor and the bias that a layer has as parameters ``first`` and ``first`` + 1."""

    def __init__(self, layer: ChannelNorm, first: int):
        self._layer, self._first = layer, first

    def operands(self, bottom: list[Blob]) -> tuple[np.ndarray, np.ndarray]:
        """Return factor and bias as vectors."""
        factor, bias = self._layer.blobs[self._first : self._first + 2]
        return factor.data.reshape(-1), bias.data.reshape(-1)

    @property
    def learns(self) -> tuple[bool, bool]:
        """Tell whether factor and bias have gradients."""
        factor, bias = self._layer.param_propagate_down[self._first : self._first + 2]
        return (False, False) if self._layer.frozen else (factor, bias)

    def gradients(self, factor: np.ndarray | None = None) -> AffineGradients:
        """Return the diffs of bias and factor, if learnt; sums of dy·x are times ``factor``."""
        diffs = [
            self._layer.blobs[self._first + index].diff.reshape(-1) if learnt else None
            for index, learnt in enumerate(self.learns)
        ]
        adds = [self._first + index not in self._layer.overwritten for index in (0, 1)]
        return AffineGradients(factor, diffs[1], diffs[0], adds[1], adds[0])


class ChannelNorm(Layer):
    """The base of layers that normalize each channel over the batch and all pixels.

    With ``own_scale``, the index of a factor and a bias among the parameters, results are
    multiplied and shifted; if it is ``frozen``, they are not learnt.  ``fixed``: mean and variance
    are not the batch's.
    """

    in_place = True
    overwrites_gradients = True
    own_scale: int | None = None
    frozen = False
    fixed = False

    def prepare(self, bottom: list[Blob]) -> int:
        """Return the number of channels; for ``setup``."""
        self._channels = self._channels_of(bottom)
        self.normalization = Normalization((0, 0, 0), self.context.parameter_dtype)
        # A copy of the bottom's data, if the layer works in place.
        self.copy: Blob | None = None
        return self._channels

    def _channels_of(self, bottom: list[Blob]) -> int:
        return bottom[0].shape[1] if bottom[0].ndim > 1 else 1

    def running(self, samples: int) -> tuple[RunningSums | None, float]:
        """Return the running sums, to which ``samples`` will be added, and eps."""
        raise NotImplementedError

    def recall(self, factor: np.ndarray | None = None) -> None:
        """Set the normalization from the running sums, if it is ``fixed``."""
        sums, eps = self.running(0)
        assert sums is not None
        self.normalization.recall(sums, eps, factor)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self._channels_of(bottom) != self._channels:
            raise self.error(
                f"has statistics of {self._channels} channels, found bottom "
                f"{describe(self, bottom, 0)}"
            )
        top[0].reshape_like(bottom[0])
        shape = bottom[0].shape[0], self._channels, bottom[0].count_of(2)
        if self.normalization.shape != shape:
            self.normalization = Normalization(shape, self.context.parameter_dtype)
            if self.own_scale is not None:
                layer = weakref.proxy(self)
                self._own = OwnScale(layer, self.own_scale)
                self._scaled = ScaledNorm(layer, self._own)
        if bottom[0] is top[0] and not self.context.forward_only:
            self.copy = self.copy or self.new_blob()
            self.copy.reshape_like(bottom[0])

    def joined(self, following: Sequence[Layer]) -> Joined | None:
        """Join a Scale of the same channels, unless there is an own one, and maybe a rectifier."""
        if self.own_scale is not None:
            rectifies = following[0].rectifier_slope is not None
            return RectifiedNorm(self, following[0]) if rectifies else None
        scale = following[0]
        if not (isinstance(scale, Scale) and scale.scales_channels(self.normalization.shape)):
            return None
        rectifies = len(following) > 1 and following[1].rectifier_slope is not None
        return ScaledBatchNorm(self, scale, following[1] if rectifies else None)

    def channel_affine(self, bottom: Blob) -> tuple[np.ndarray, np.ndarray] | None:
        """Return factor and bias of each channel if the statistics are fixed."""
        if not self.fixed or len(self.param.top) > 1 or bottom.ndim < 2:
            return None
        self.recall()
        shift = self.normalization.result.shift
        factor = self.normalization.result.scale.astype(np.float64)
        if self.own_scale is None:
            return factor, -shift * factor
        own, bias = self._own.operands([bottom])
        return factor * own, bias - shift * factor * own

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.own_scale is not None:
            self.forward_scaled(bottom, top)
        else:
            self.normalize(bottom[0], top[0], self.normalization.plain)

    def normalize(self, bottom: Blob, top: Blob, following: Affine) -> None:
        """Set the top; in place, keep the bottom if backward needs it."""
        x, y, in_place = bottom.data, top.data, bottom is top
        is_needed = not self.fixed or following is not self.normalization.plain
        kept = self.copy.data if self.copy is not None and in_place and is_needed else None
        if self.fixed:
            self.recall(following.factor)
            self.normalization.forward(x, y, kept, following)
        else:
            outer, _, inner = self.normalization.shape
            self.normalization.fit(x, y, kept, self.running(outer * inner), following)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if self.own_scale is not None:
            self.backward_scaled(top, propagate_down, bottom)
        elif propagate_down[0] and self.fixed:
            self.normalization.set_fixed_gradient(top[0].diff, bottom[0].diff)
        elif propagate_down[0]:
            x = bottom[0].data if self.copy is None else self.copy.data
            arrays = x, top[0].diff, bottom[0].diff
            self.normalization.backward(*arrays, self.normalization.plain)

    def forward_scaled(
        self, bottom: list[Blob], top: list[Blob], slope: float | None = None
    ) -> None:
        """Run forward with the own scale, and rectify the results if there is a ``slope``."""
        self._scaled.forward(bottom, top, slope)

    def backward_scaled(
        self,
        top: list[Blob],
        propagate_down: list[bool],
        bottom: list[Blob],
        slope: float | None = None,
    ) -> None:
        """Run the backward of `forward_scaled`."""
        if propagate_down[0] and not self.fixed:
            self._scaled.spread_back(top[0], bottom[0], slope)
            return
        if any(self._own.learns):
            self._scaled.add_up(top[0], slope)
        if propagate_down[0]:
            self._scaled.set_gradient(top[0], bottom[0], slope)
