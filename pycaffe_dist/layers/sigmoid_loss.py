"""Losses of sigmoids: SigmoidCrossEntropyLoss, and its balanced form."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.exponential import sigmoid
from pycaffe_dist.layers.base import Arity, register
from pycaffe_dist.layers.checking import require_same_count
from pycaffe_dist.layers.loss import BATCH_SIZE, VALID, Loss, normalization_of


def cross_entropy(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return -t·log(p) - (1 - t)·log(1 - p) with p = sigmoid(x), for each element."""
    # log(1 - p) = -x - log(1 + e^-x), written so that no exponential overflows.
    losses = np.log1p(np.exp(-np.abs(x)))
    losses += np.maximum(x, 0)
    losses -= x * target
    return losses


@register("SigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(Loss):
    """-t·log(p) - (1 - t)·log(1 - p) with p = sigmoid(x), summed and normalized.

    A third bottom has a weight for each element; the sum is then divided by that of the weights, or
    0 if that is not above 0 (daijifeng001/caffe-mnc).
    """

    bottoms = Arity(2, 3)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._ignore = None
        self._weighted = len(bottom) > 2
        self._normalization: int = VALID
        self._normalizer: Any = 1.0
        if self._weighted:
            self.uses_rank_mean = True
            if self.param.HasField("loss_param"):
                raise self.error("takes no loss_param with weights, whose sum is the divisor")
            return
        if self.param.loss_param.HasField("ignore_label"):
            self._ignore = self.param.loss_param.ignore_label
        self._normalization = normalization_of(self.param.loss_param, BATCH_SIZE)
        self.uses_rank_mean = self._ignore is not None and self._normalization == VALID

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        for index in range(1, len(bottom)):
            require_same_count(self, bottom, 0, index)

    def _ignored(self, target: np.ndarray) -> np.ndarray | None:
        return None if self._ignore is None else np.trunc(target) == self._ignore

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        x, target = bottom[0].data.reshape(-1), bottom[1].data.reshape(-1)
        losses = cross_entropy(x, target)
        valid: Any = x.size
        if self._weighted:
            weights = bottom[2].data.reshape(-1)
            losses *= weights
            valid = weights.sum(dtype=np.float64)
            divisor = self.divisor(VALID, (0, 0), valid)
            self._normalizer = divisor or np.where(valid > 0, valid, np.inf)
            return losses.sum(dtype=np.float64) / self._normalizer
        ignored = self._ignored(target)
        if ignored is not None:
            np.copyto(losses, 0, where=ignored)
            valid = x.size - np.count_nonzero(ignored)
        sizes, fixed = (bottom[0].shape[0], x.size), self.param.loss_param.pre_fixed_normalizer
        divisor = self.divisor(self._normalization, sizes, valid, fixed)
        self._normalizer = divisor or np.maximum(valid, 1.0)
        return losses.sum(dtype=np.float64) / self._normalizer

    def gradient(self, bottom: list[Blob], weight: float) -> None:
        target, dx = bottom[1].data.reshape(-1), bottom[0].diff.reshape(-1)
        sigmoid(bottom[0].data.reshape(-1), dx)
        dx -= target
        dx *= weight / self._normalizer
        if self._weighted:
            dx *= bottom[2].data.reshape(-1)
        ignored = self._ignored(target)
        if ignored is not None:
            np.copyto(dx, 0, where=ignored)


@register("SigmoidCrossEntropyBalanceLoss")
class SigmoidCrossEntropyBalanceLoss(Loss):
    """SigmoidCrossEntropyLoss with equal weights of ones and zeros, for targets with few ones.

    In each sample, a target of 1 has the share of zeros as its weight, and a target of 0 the share
    of ones.  The sum is divided by the batch.  DengPingFan/DAVSOD has it under this name; in
    s9xie/hed SigmoidCrossEntropyLoss does this.  As there, other targets are not in the loss, but
    their gradient has the weight 1.  (Xie and Tu, 2015.)
    """

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        require_same_count(self, bottom, 0, 1)

    def _operands(self, bottom: list[Blob], other: float) -> tuple[np.ndarray, ...]:
        """Return predictions, targets and weights as (N, D); ``other`` weighs other targets."""
        x, target = (blob.data.reshape(blob.shape[0], -1) for blob in bottom)
        one, zero = target == 1, target == 0
        ones, zeros = (marks.sum(axis=1, keepdims=True) for marks in (one, zero))
        counted = np.maximum(ones + zeros, 1)
        weights = np.where(zero, ones / counted, other)
        return x, target, np.where(one, zeros / counted, weights)

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        x, target, weights = self._operands(bottom, 0)
        return (cross_entropy(x, target) * weights).sum(dtype=np.float64) / len(x)

    def gradient(self, bottom: list[Blob], weight: float) -> None:
        x, target, weights = self._operands(bottom, 1)
        dx = bottom[0].diff.reshape(x.shape)
        sigmoid(x, dx)
        dx -= target
        dx *= weights * (weight / len(x))
