"""Normalization by mean and variance: BatchNorm over the batch, MVN over each sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.channel_affine import statistics
from pycaffe_dist.kernels.normalization import RunningSums
from pycaffe_dist.layers.base import Layer, is_test, register
from pycaffe_dist.layers.channel_norm import ChannelNorm, Normalization
from pycaffe_dist.layers.checking import describe
from pycaffe_dist.layers.joined import Joined
from pycaffe_dist.layers.parameters import constant, make_parameters

# The blobs with statistics: means, variances, and the sum of their weights.
STATISTICS = 3


@register("BatchNorm")
class BatchNorm(ChannelNorm):
    """(x - mean) / sqrt(variance + eps), each channel over the batch and all pixels.

    The blobs are running sums of mean and variance, and the sum of their weights.  With
    use_global_stats (the default in the TEST phase) they replace the batch's statistics.  (Ioffe
    and Szegedy, 2015; without scale and bias, as in Caffe.)  With scale_bias, scale_filler or
    bias_filler two more blobs, a factor and a bias of each channel, are learnt, as in NVIDIA/caffe;
    the statistics stay sums (that fork keeps means, and 1 as their weight).  With stats_batch_size
    each group of this many samples has its own statistics, as in intel/caffe.
    """

    only_kernels = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.batch_norm_param
        self.fixed = is_test(self.phase)
        if param.HasField("use_global_stats"):
            self.fixed = param.use_global_stats
        channels, zero = (self.prepare(bottom),), constant(0)
        specs = [(channels, zero), (channels, zero), ((1,), zero)]
        if param.scale_bias or param.HasField("scale_filler") or param.HasField("bias_filler"):
            self.own_scale = STATISTICS
            factor = param.scale_filler if param.HasField("scale_filler") else constant(1)
            specs += [(channels, factor), (channels, param.bias_filler)]
        make_parameters(self, *specs)
        self._freeze_statistics()
        self._parts: list[Normalization] = []
        if param.stats_batch_size and self.own_scale is not None:
            raise self.error("takes no stats_batch_size together with a scale of its own")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        outer, channels, inner = self.normalization.shape
        size = self.param.batch_norm_param.stats_batch_size
        if self.fixed or size in (0, outer):
            self._parts = []
            return
        if outer % size:
            raise self.error(
                f"needs a batch that stats_batch_size {size} divides, found bottom "
                f"{describe(self, bottom, 0)}"
            )
        shape = size, channels, inner
        if len(self._parts) != outer // size or self._parts[0].shape != shape:
            dtype = self.context.parameter_dtype
            self._parts = [Normalization(shape, dtype) for _ in range(outer // size)]

    def joined(self, following: Sequence[Layer]) -> Joined | None:
        """Join others unless parts of the batch are normalized one by one."""
        splits = self.param.batch_norm_param.stats_batch_size and not self.fixed
        return None if splits else super().joined(following)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if not self._parts:
            super().forward(bottom, top)
            return
        kept = None if self.copy is None else self._split(self.copy.data)
        arrays = zip(self._parts, self._split(bottom[0].data), self._split(top[0].data))
        for index, (part, x, y) in enumerate(arrays):
            copy = None if kept is None else kept[index]
            part.fit(x, x if bottom[0] is top[0] else y, copy, self.running(x.size), part.plain)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not self._parts:
            super().backward(top, propagate_down, bottom)
        elif propagate_down[0]:
            kept = bottom[0].data if self.copy is None else self.copy.data
            arrays = (self._split(array) for array in (kept, top[0].diff, bottom[0].diff))
            for part, x, dy, dx in zip(self._parts, *arrays):
                part.backward(x, dy, dy if bottom[0] is top[0] else dx, part.plain)

    def _split(self, array: np.ndarray) -> np.ndarray:
        """Return an array as one of parts of the batch."""
        return array.reshape(len(self._parts), -1)

    def _freeze_statistics(self) -> None:
        """Keep the solver from updating the statistics."""
        for index, spec in enumerate(self.param.param[:STATISTICS]):
            if self.own_scale is not None:
                spec.lr_mult = 0
            elif spec.lr_mult != 0:
                raise self.error(
                    f"keeps statistics, which are not learnt: give param {index} lr_mult: 0"
                )
        while len(self.param.param) < STATISTICS:
            self.param.param.add(lr_mult=0)

    def statistics_blobs(self) -> list[Blob]:
        """Return the sums of means, of variances, and of weights."""
        return self.blobs[:STATISTICS]

    def running(self, samples: int) -> tuple[RunningSums, float]:
        """Return the running sums, to which ``samples`` will be added, and eps."""
        param = self.param.batch_norm_param
        unbiased = samples / (samples - 1) if samples > 1 else 1.0
        means, variances, weight = (blob.data for blob in self.statistics_blobs())
        keep = param.moving_average_fraction
        return RunningSums(means, variances, weight, keep, 1.0, unbiased), param.eps


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
        result = normalization.result
        statistics(bottom[0].data.reshape(normalization.shape), result.mean, result.variance)
        result.shift[...] = result.mean
        if param.normalize_variance:
            result.scale[...] = 1 / (np.sqrt(result.variance) + param.eps)
        else:
            result.scale.fill(1)
        result.product[...] = result.scale
        normalization.forward(bottom[0].data, top[0].data, None, normalization.plain)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            arrays, normalization = (bottom[0].data, top[0].diff), self._normalization
            normalization.add_up(
                *arrays, normalization.terms(self.param.mvn_param.normalize_variance)
            )
            normalization.set_gradient(*arrays, bottom[0].diff, normalization.plain)
