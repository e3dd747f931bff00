"""Normalization by mean and variance: BatchNorm over the batch, MVN over each sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.channel_affine import (
    affine,
    affine_in_place,
    gradient_sums,
    normalize_gradient,
    statistics,
)
from pycaffe_dist.kernels.normalization import (
    add_to_running_sums,
    gradient_terms,
    running_statistics,
    shift_and_scale,
)
from pycaffe_dist.layers.base import Layer, is_test, register
from pycaffe_dist.layers.checking import describe
from pycaffe_dist.layers.joined import Joined
from pycaffe_dist.layers.parameters import constant, make_parameters
from pycaffe_dist.layers.scale import Scale
from pycaffe_dist.layers.scaled_batch_norm import ScaledBatchNorm


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
        gradient_sums(x.reshape(self.shape), dy.reshape(self.shape), self.shift, *self._sums)
        self.set_gradient(x, dy, dx, self._sums, self.scale, spread)

    def set_gradient(
        self,
        x: np.ndarray,
        dy: np.ndarray,
        dx: np.ndarray,
        sums: tuple[np.ndarray, np.ndarray],
        factor: np.ndarray,
        spread: bool = True,
    ) -> None:
        """Set dx of y = (x - shift)·factor, a multiple of the scale, from `gradient_sums` of dy.

        dx may be dy.
        """
        source = dy.reshape(self.shape)
        target = source if dx is dy else dx.reshape(self.shape)
        count = max(1, self.shape[0] * self.shape[2])
        terms = self._offset, self._slope
        gradient_terms(*sums, count, self.scale, spread, *terms)
        normalize_gradient(x.reshape(self.shape), source, target, self.shift, factor, *terms)


@register("BatchNorm")
class BatchNorm(Layer):
    """(x - mean) / sqrt(variance + eps), each channel over the batch and all pixels.

    The blobs are running sums of mean and variance, and the sum of their weights.  With
    use_global_stats (the default in the TEST phase) they replace the batch's statistics.  (Ioffe
    and Szegedy, 2015; without scale and bias, as in Caffe.)
    """

    in_place = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.batch_norm_param
        self._global = is_test(self.phase)
        if param.HasField("use_global_stats"):
            self._global = param.use_global_stats
        self._channels = self._channels_of(bottom)
        zero = constant(0)
        make_parameters(self, ((self._channels,), zero), ((self._channels,), zero), ((1,), zero))
        # The solver must not update the statistics.
        for index, spec in enumerate(self.param.param):
            if spec.lr_mult != 0:
                raise self.error(
                    f"keeps statistics, which are not learnt: give param {index} lr_mult: 0"
                )
        while len(self.param.param) < len(self.blobs):
            self.param.param.add(lr_mult=0)
        self.normalization = Normalization((0, 0, 0), self.context.parameter_dtype)
        # A copy of the bottom's data, if the layer works in place.
        self.copy: Blob | None = None

    def _channels_of(self, bottom: list[Blob]) -> int:
        return bottom[0].shape[1] if bottom[0].ndim > 1 else 1

    def statistics_blobs(self) -> list[Blob]:
        """Return the sums of means, of variances, and of weights."""
        return self.blobs

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
        if bottom[0] is top[0]:
            self.copy = self.copy or self.new_blob()
            self.copy.reshape_like(bottom[0])

    def joined(self, following: Sequence[Layer]) -> Joined | None:
        """Join a Scale of the same channels, and maybe a rectifier after it."""
        scale = following[0]
        if not (isinstance(scale, Scale) and scale.scales_channels(self.normalization.shape)):
            return None
        rectifies = len(following) > 1 and following[1].rectifier_slope is not None
        return ScaledBatchNorm(self, scale, following[1] if rectifies else None)

    def measure(self, bottom: Blob) -> Normalization:
        """Return the normalization with the statistics of ``bottom``, or with the running ones."""
        normalization = self.normalization
        statistics = normalization.mean, normalization.variance
        means, variances, weight = (blob.data for blob in self.blobs)
        if self._global:
            mean, variance = statistics
            running_statistics(means, variances, weight, mean, variance)
        else:
            normalization.measure(bottom.data)
            keep = self.param.batch_norm_param.moving_average_fraction
            outer, _, inner = normalization.shape
            count = outer * inner
            unbiased = count / (count - 1) if count > 1 else 1.0
            add_to_running_sums(*statistics, keep, unbiased, means, variances, weight)
        eps = self.param.batch_norm_param.eps
        shift_and_scale(*statistics, eps, normalization.shift, normalization.scale)
        return normalization

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        normalization = self.measure(bottom[0])
        kept = None if self._global or self.copy is None else self.copy.data
        normalization.forward(bottom[0].data, top[0].data, kept)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        dy, dx = top[0].diff, bottom[0].diff
        if self._global:
            self.normalization.backward_fixed(dy, dx, self.normalization.scale)
        else:
            x = bottom[0].data if self.copy is None else self.copy.data
            self.normalization.backward(x, dy, dx)

    def set_gradient(
        self,
        x: np.ndarray,
        dy: np.ndarray,
        dx: np.ndarray,
        sums: tuple[np.ndarray, np.ndarray],
        factor: np.ndarray,
    ) -> None:
        """Set dx if ``factor`` replaced the scale in forward; see `Normalization`."""
        if self._global:
            self.normalization.backward_fixed(dy, dx, factor)
        else:
            self.normalization.set_gradient(x, dy, dx, sums, factor)


@register("MVN")
class MVN(Layer):
    """(x - mean) / (deviation + eps) of each channel, or sample if across_channels.

    Without normalize_variance only the mean is subtracted.  As in Caffe, the gradient assumes that
    eps is small.
    """

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._normalization = Normalization((0, 0, 0), self.context.parameter_dtype)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) > 4:
            raise self.error(f"takes at most 4 axes, found bottom {describe(self, bottom, 0)}")
        top[0].reshape(*shape, *(1,) * (4 - len(shape)))
        axes = 1 if self.param.mvn_param.across_channels else 2
        rows = bottom[0].count_of(0, axes)
        layout = 1, rows, bottom[0].count // max(1, rows)
        if self._normalization.shape != layout:
            self._normalization = Normalization(layout, self.context.parameter_dtype)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        param, normalization = self.param.mvn_param, self._normalization
        normalization.measure(bottom[0].data)
        normalization.shift[...] = normalization.mean
        if param.normalize_variance:
            normalization.scale[...] = 1 / (np.sqrt(normalization.variance) + param.eps)
        else:
            normalization.scale.fill(1)
        normalization.forward(bottom[0].data, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            self._normalization.backward(
                bottom[0].data,
                top[0].diff,
                bottom[0].diff,
                spread=self.param.mvn_param.normalize_variance,
            )
