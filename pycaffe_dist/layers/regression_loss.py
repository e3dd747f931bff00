"""Losses that compare values: EuclideanLoss, L1Loss, DiceCoefLoss, ContrastiveLoss."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.reduction import SQUARE, reduce_rows
from pycaffe_dist.layers.base import Arity, register
from pycaffe_dist.layers.checking import describe, require_no_gradient, require_same_count
from pycaffe_dist.layers.loss import Loss


class DifferenceLoss(Loss):
    """The base of losses of the differences of two bottoms, of which both get gradients."""

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        require_same_count(self, bottom, 0, 1)

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Both bottoms may be predictions."""
        return True

    def total(self, difference: np.ndarray) -> float:
        """Return the loss, times the batch."""
        raise NotImplementedError

    def slope(self, difference: np.ndarray) -> None:
        """Replace the differences by the gradient of `total`."""
        raise NotImplementedError

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        difference = bottom[0].data.reshape(-1) - bottom[1].data.reshape(-1)
        return self.total(difference) / bottom[0].shape[0]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        scale = self.weight_of(top) / bottom[0].shape[0]
        for index, sign in ((0, 1), (1, -1)):
            if propagate_down[index]:
                dx = bottom[index].diff.reshape(-1)
                np.subtract(bottom[0].data.reshape(-1), bottom[1].data.reshape(-1), out=dx)
                self.slope(dx)
                dx *= sign * scale


@register("EuclideanLoss")
class EuclideanLoss(DifferenceLoss):
    """The sum of squared differences, divided by twice the batch; both bottoms get gradients."""

    def total(self, difference: np.ndarray) -> float:
        return np.square(difference).sum(dtype=np.float64) / 2

    def slope(self, difference: np.ndarray) -> None:
        pass


@register("L1Loss")
class L1Loss(DifferenceLoss):
    """The sum of absolute differences, divided by the batch, as in NVIDIA/caffe.

    Both bottoms get gradients, which are 0 where the bottoms are equal.
    """

    def total(self, difference: np.ndarray) -> float:
        return np.absolute(difference).sum(dtype=np.float64)

    def slope(self, difference: np.ndarray) -> None:
        np.sign(difference, out=difference)


@register("DiceCoefLoss")
class DiceCoefLoss(Loss):
    """1 - |2 x·y + 1| / (x² + y² + 1), averaged over the batch; both bottoms get gradients.

    Follows HolmesShuan/A-Variation-of-Dice-coefficient-Loss-Caffe-Layer (there on the CPU), which
    SURFZJY/EAST-caffe uses.  As there, the gradients are those of the sum over the batch, and of
    the quotient without magnitude.
    """

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        require_same_count(self, bottom, 0, 1)

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Both bottoms may be predictions."""
        return True

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        x, y = (blob.data.reshape(blob.shape[0], -1) for blob in bottom)
        self._sums = 1.0 + sum(
            np.einsum("nd,nd->n", array, array, dtype=self.context.parameter_dtype)
            for array in (x, y)
        )
        both = np.einsum("nd,nd->n", x, y, dtype=self.context.parameter_dtype)
        self._quotients = (2 * both + 1) / self._sums
        return 1 - np.absolute(self._quotients).mean()

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        scale = 2 * self.weight_of(top) / self._sums[:, None]
        for blob, other, wanted in zip(bottom, bottom[::-1], propagate_down):
            if wanted:
                x, y = (each.data.reshape(len(scale), -1) for each in (blob, other))
                blob.diff[...] = (scale * (self._quotients[:, None] * x - y)).reshape(blob.shape)


@register("ContrastiveLoss")
class ContrastiveLoss(Loss):
    """d² for similar pairs, max(margin - d, 0)² for other pairs, halved, averaged over the batch.

    bottom[2] is not 0 for similar pairs; legacy_version uses max(margin - d², 0).  (Hadsell et al.,
    2006.)
    """

    bottoms = Arity(3, 3)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        require_same_count(self, bottom, 0, 1)
        for index in (0, 1):
            if bottom[index].count_of(2) != 1:
                raise self.error(
                    f"needs one vector per sample, found bottom {describe(self, bottom, index)}"
                )
        if bottom[2].count != bottom[0].shape[0]:
            raise self.error(
                f"needs one similarity per pair: {bottom[0].shape[0]}, found bottom "
                f"{describe(self, bottom, 2)}"
            )

    def _measure(self, bottom: list[Blob]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the differences (N, C), their squared lengths (N), and the similarities (N)."""
        shape = bottom[0].shape[0], -1
        difference = bottom[0].data.reshape(shape) - bottom[1].data.reshape(shape)
        squares = xp().empty(len(difference), self.context.parameter_dtype)
        reduce_rows(difference, SQUARE, 1.0, squares)
        return difference, squares, np.trunc(bottom[2].data.reshape(-1)) != 0

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        param = self.param.contrastive_loss_param
        _, squares, similar = self._measure(bottom)
        if param.legacy_version:
            apart = np.maximum(param.margin - squares, 0)
        else:
            apart = np.maximum(param.margin - np.sqrt(squares), 0) ** 2
        total = np.where(similar, squares, apart).sum(dtype=np.float64)
        return total / bottom[0].shape[0] / 2

    def allow_force_backward(self, bottom_index: int) -> bool:
        """The similarities have no gradient."""
        return bottom_index != 2

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 2)
        param = self.param.contrastive_loss_param
        difference, squares, similar = self._measure(bottom)
        if param.legacy_version:
            factor = np.where(squares < param.margin, -1, 0)
        else:
            distance = np.sqrt(squares)
            # As in Caffe, a small constant avoids division by zero for equal pairs.
            factor = -np.maximum(param.margin - distance, 0) / (distance + 1e-4)
        factor = np.where(similar, 1, factor) * (self.weight_of(top) / bottom[0].shape[0])
        for index, sign in ((0, 1), (1, -1)):
            if propagate_down[index]:
                dx = bottom[index].diff.reshape(difference.shape)
                np.multiply(difference, sign * factor[:, None], out=dx, casting="same_kind")
