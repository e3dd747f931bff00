"""The base of normalizations of channels by mean and variance, with or without a learnt scale."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.channel_affine import (
    affine,
    affine_in_place,
    normalize_gradient,
    statistics,
)
from pycaffe_dist.kernels.normalization import (
    AffineGradients,
    GradientTerms,
    RunningSums,
    backward_sums,
    measure,
    running_statistics,
    shift_and_scale,
)
from pycaffe_dist.layers.base import Layer
from pycaffe_dist.layers.checking import describe
from pycaffe_dist.layers.joined import Joined
from pycaffe_dist.layers.scale import Scale
from pycaffe_dist.layers.scaled_batch_norm import RectifiedNorm, ScaledBatchNorm, ScaledNorm


class Normalization:
    """y = (x - shift)·scale per channel of (outer, channels, inner), and its gradient.

    Shift and scale are vectors of the parameters' dtype: the data's dtype, but at least float32.
    ``mean`` and ``variance`` are float64.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: np.dtype):
        self.shape = shape
        channels, dtype = shape[1], np.result_type(dtype, np.float32)
        self.mean, self.variance = xp().zeros(channels), xp().zeros(channels)
        self.shift, self.scale, self._zero, self._offset, self._slope = (
            xp().zeros(channels, dtype) for _ in range(5)
        )
        self._sums = xp().zeros(channels), xp().zeros(channels)

    def measure(self, x: np.ndarray) -> None:
        """Set ``mean`` and ``variance`` to the values of x."""
        statistics(x.reshape(self.shape), self.mean, self.variance)

    def fit(
        self,
        x: np.ndarray,
        running: RunningSums | None,
        eps: float,
        factor: np.ndarray | None = None,
        product: np.ndarray | None = None,
    ) -> None:
        """Measure x, add to the running sums, set shift and scale, and product to scale·factor."""
        arrays = x.reshape(self.shape), self.mean, self.variance
        measure(*arrays, running, eps, self.shift, self.scale, factor, product)

    def recall(
        self,
        means: np.ndarray,
        variances: np.ndarray,
        weight: np.ndarray | None,
        eps: float,
        factor: np.ndarray | None = None,
        product: np.ndarray | None = None,
    ) -> None:
        """Do the same with the statistics of running sums; see `running_statistics`."""
        statistics = self.mean, self.variance
        running_statistics(means, variances, weight, *statistics)
        shift_and_scale(*statistics, eps, self.shift, self.scale, factor, product)

    def forward(self, x: np.ndarray, y: np.ndarray, kept: np.ndarray | None = None) -> None:
        """Set y to (x - shift)·scale; y may be x, and ``kept``, if given, then gets a copy of x."""
        if kept is not None:
            arrays = x.reshape(self.shape), kept.reshape(self.shape)
            affine_in_place(*arrays, self.shift, self.scale, self._zero)
            return
        source = x.reshape(self.shape)
        target = source if x is y else y.reshape(self.shape)
        affine(source, target, self.shift, self.scale, self._zero)

    def backward_fixed(self, dy: np.ndarray, dx: np.ndarray, factor: np.ndarray) -> None:
        """Set dx to dy·factor, for shift and scale that do not depend on x; dx may be dy."""
        source = dy.reshape(self.shape)
        target = source if dx is dy else dx.reshape(self.shape)
        affine(source, target, self._zero, factor, self._zero)

    def backward(self, x: np.ndarray, dy: np.ndarray, dx: np.ndarray, spread: bool = True) -> None:
        """Set dx if the shift is the mean of x and, with ``spread``, the scale is 1/deviation."""
        arrays = x.reshape(self.shape), dy.reshape(self.shape), self.shift
        backward_sums(*arrays, *self._sums, terms=self.terms(spread))
        self.set_gradient(x, dy, dx, self.scale)

    def terms(self, spread: bool = True) -> GradientTerms:
        """Return the terms that `set_gradient` needs, for `backward_sums` to set."""
        return GradientTerms(self.scale, spread, self._offset, self._slope)

    def set_gradient(
        self,
        x: np.ndarray,
        dy: np.ndarray,
        dx: np.ndarray,
        factor: np.ndarray,
        rectifier: tuple[np.ndarray | None, float | None] = (None, None),
    ) -> None:
        """Set dx of y = (x - shift)·factor, a multiple of the scale, from the terms.

        dx may be dy.  A ``rectifier`` is a bias that is added to y and the slope of what follows;
        the terms are then those of the rectified dy.
        """
        source = dy.reshape(self.shape)
        target = source if dx is dy else dx.reshape(self.shape)
        arrays = x.reshape(self.shape), source, target
        terms = self._offset, self._slope
        normalize_gradient(*arrays, self.shift, factor, *terms, *rectifier)


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

    def measure(
        self,
        bottom: Blob,
        factor: np.ndarray | None = None,
        product: np.ndarray | None = None,
    ) -> Normalization:
        """Return the normalization with the statistics of ``bottom``, or with the running ones.

        ``product``, if given, is set to its scale times ``factor``.
        """
        raise NotImplementedError

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
        normalization = self.measure(bottom)
        factor = normalization.scale.astype(np.float64)
        if self.own_scale is None:
            return factor, -normalization.shift * factor
        own, bias = self._own.operands([bottom])
        return factor * own, bias - normalization.shift * factor * own

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.own_scale is not None:
            self.forward_scaled(bottom, top)
            return
        normalization = self.measure(bottom[0])
        kept = None if self.fixed or self.copy is None else self.copy.data
        normalization.forward(bottom[0].data, top[0].data, kept)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if self.own_scale is not None:
            self.backward_scaled(top, propagate_down, bottom)
            return
        if not propagate_down[0]:
            return
        dy, dx = top[0].diff, bottom[0].diff
        if self.fixed:
            self.normalization.backward_fixed(dy, dx, self.normalization.scale)
        else:
            x = bottom[0].data if self.copy is None else self.copy.data
            self.normalization.backward(x, dy, dx)

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
        if any(self._own.learns) or (propagate_down[0] and not self.fixed):
            self._scaled.sum_up(top[0], slope)
        if propagate_down[0]:
            self._scaled.set_gradient(top[0], bottom[0], slope)

    def set_gradient(
        self,
        x: np.ndarray,
        dy: np.ndarray,
        dx: np.ndarray,
        factor: np.ndarray,
        rectifier: tuple[np.ndarray | None, float | None],
    ) -> None:
        """Set dx if ``factor`` replaced the scale in forward; see `Normalization`."""
        if self.fixed and rectifier[1] is None:
            self.normalization.backward_fixed(dy, dx, factor)
        else:
            # If statistics are fixed, nobody sets the terms: they are zero.
            self.normalization.set_gradient(x, dy, dx, factor, rectifier)
