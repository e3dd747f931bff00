"""EuclideanDist, SumLoss, Chnwise and MVNO: distances of colours, from swift-n-brutal/caffe."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import describe, mismatch, require_same_batch
from pycaffe_dist.layers.loss import Loss


@register("EuclideanDist")
class EuclideanDist(Layer):
    """Half the squared distance of two bottoms for each sample: (N, 1, 1, 1).

    Follows swift-n-brutal/caffe.
    """

    host_only = True
    bottoms = Arity(2, 2)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_same_batch(self, bottom, 0, 1)
        if bottom[0].count_of(1) != bottom[1].count_of(1):
            raise mismatch(self, bottom, 0, 1, "need as many values per sample")
        top[0].reshape(bottom[0].shape[0], 1, 1, 1)

    def _difference(self, bottom: list[Blob]) -> np.ndarray:
        number = bottom[0].shape[0]
        first, second = (blob.data.reshape(number, blob.count_of(1)) for blob in bottom)
        return np.subtract(first, second)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        difference = self._difference(bottom)
        top[0].data[:, 0, 0, 0] = (difference * difference).sum(axis=1) / 2

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if any(propagate_down):
            gradient = self._difference(bottom) * top[0].diff.reshape(-1, 1)
            for blob, wanted, sign in zip(bottom, propagate_down, (1, -1)):
                if wanted:
                    blob.diff[...] = sign * gradient.reshape(blob.shape)


@register("SumLoss")
class SumLoss(Loss):
    """The sum of all values over the number of samples, as a loss (swift-n-brutal/caffe)."""

    host_only = True
    bottoms = Arity(1, 1)
    backward_needs_bottom = Need.NONE

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape()

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        return float(bottom[0].data.sum()) / max(1, bottom[0].shape[0])

    def gradient(self, bottom: list[Blob], weight: float) -> None:
        bottom[0].diff.fill(weight / max(1, bottom[0].shape[0]))


@register("Chnwise")
class Chnwise(Layer):
    """The first bottom plus one value for each of its channels: the second bottom.

    Both are multiplied by ``coeff`` (1 by default).  Follows swift-n-brutal/caffe, where the second
    bottom has no gradient.  Other operations than SUM are not supported.
    """

    host_only = True
    bottoms = Arity(2, 2)
    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.chnwise_param
        if param.operation != param.SUM:
            raise self.error("supports the operation SUM only")
        if len(param.coeff) not in (0, 2):
            raise self.error(f"needs a coeff for each of 2 bottoms, found {len(param.coeff)}")
        self._coeff = list(param.coeff) or [1.0, 1.0]

    def allow_force_backward(self, bottom_index: int) -> bool:
        """The second bottom has no gradient."""
        return bottom_index == 0

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom[0].ndim < 2 or bottom[1].count != bottom[0].count_of(0, 2):
            raise self.error(
                f"needs one value for each channel of bottom {describe(self, bottom, 0)}, found "
                f"bottom {describe(self, bottom, 1)}"
            )
        top[0].reshape_like(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        first, second = (top[0].data.dtype.type(value) for value in self._coeff)
        channels = bottom[1].data.reshape(*bottom[0].shape[:2], *[1] * (bottom[0].ndim - 2))
        np.add(first * bottom[0].data, second * channels, out=top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            np.multiply(top[0].diff, top[0].diff.dtype.type(self._coeff[0]), out=bottom[0].diff)
        if propagate_down[1]:
            bottom[1].diff.fill(0)


@register("MVNO")
class MVNO(Layer):
    """MVN that can leave out the mean, and put out means and deviations (swift-n-brutal/caffe).

    Normalizes each channel, or sample if across_channels: minus its mean with sub_mean, over its
    deviation, or its length without sub_mean, with normalize_variance.  Further tops, of
    shape (N, C) or (N, 1), get the means (output_mean) and the divisors (output_variance).  As in
    the fork, only the first top has a gradient, which assumes that eps is small.
    """

    host_only = True
    tops = Arity(1, 3)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.mvno_param
        if len(top) != 1 + param.output_mean + param.output_variance:
            raise self.error(
                f"needs a top each for output_mean and output_variance, found {len(top)} tops"
            )

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom[0].ndim < 2:
            raise self.error(f"needs 2 axes or more, found bottom {describe(self, bottom, 0)}")
        top[0].reshape_like(bottom[0])
        number, channels = bottom[0].shape[:2]
        for blob in top[1:]:
            blob.reshape(number, 1 if self.param.mvno_param.across_channels else channels)

    def _layout(self, bottom: list[Blob]) -> tuple[int, int]:
        axes = 1 if self.param.mvno_param.across_channels else 2
        return bottom[0].count_of(0, axes), bottom[0].count_of(axes)

    def _terms(self, bottom: list[Blob]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return means, rows without them if sub_mean, and deviations or lengths."""
        param, x = self.param.mvno_param, bottom[0].data.reshape(self._layout(bottom))
        mean = x.mean(axis=1, keepdims=True)
        rows = x - mean if param.sub_mean else x
        squares = (rows * rows).sum(axis=1, keepdims=True)
        deviation = np.sqrt(squares / x.shape[1] if param.sub_mean else squares)
        return mean, rows, deviation + param.eps if param.normalize_variance else deviation

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        param, (mean, rows, deviation) = self.param.mvno_param, self._terms(bottom)
        result = rows / deviation if param.normalize_variance else rows
        top[0].data[...] = result.reshape(top[0].shape)
        wanted = [mean] * param.output_mean + [deviation] * param.output_variance
        for blob, values in zip(top[1:], wanted):
            blob.data[...] = values.reshape(blob.shape)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        param = self.param.mvno_param
        gradient = top[0].diff.reshape(self._layout(bottom))
        _, rows, deviation = self._terms(bottom)
        if param.normalize_variance:
            y = rows / deviation
            share = gradient.shape[1] if param.sub_mean else 1
            along = (y * gradient).sum(axis=1, keepdims=True) / share
            gradient = (gradient - y * along) / deviation
        if param.sub_mean:
            gradient = gradient - gradient.mean(axis=1, keepdims=True)
        bottom[0].diff[...] = gradient.reshape(bottom[0].shape)
