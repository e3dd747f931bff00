"""CenterLoss: features near the centre of their class."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.scatter import gather, scatter_add
from pycaffe_dist.layers.base import register
from pycaffe_dist.layers.checking import (
    axis_of,
    checked_indices,
    describe,
    require_no_gradient,
)
from pycaffe_dist.layers.loss import Loss
from pycaffe_dist.layers.parameters import make_parameters


@register("CenterLoss")
class CenterLoss(Loss):
    """The sum of squared distances to the labels' centres, divided by twice the batch.

    The centres are a parameter (num_output, features).  As in ydwen/caffe-face, a centre's diff is
    no derivative: it is the sum of (centre - x) over the n samples of its class, divided by 1 + n,
    whatever the loss weight; without ``loss_weight`` that is 0.  On several ranks n counts the
    rank's own samples, and the diffs' mean is taken, as with several GPUs in Caffe: P ranks move a
    centre (1 + n) / (P + n) times as far as one rank with the whole batch, n samples of a class,
    does.  (Wen et al., 2016.)
    """

    default_loss_weight = 0.0

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.center_loss_param
        if param.num_output == 0:
            raise self.error("needs num_output of at least 1, the number of classes")
        self._features = bottom[0].count_of(axis_of(self, bottom, param.axis))
        make_parameters(self, ((param.num_output, self._features), param.center_filler))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        batch = bottom[0].shape[0]
        if bottom[0].count != batch * self._features:
            raise self.error(
                f"has centres of {self._features} features, found bottom "
                f"{describe(self, bottom, 0)}; axis may be 1 only"
            )
        if bottom[1].count != batch:
            raise self.error(
                f"needs one label per sample: {batch}, found bottom {describe(self, bottom, 1)}"
            )
        self._difference = xp().empty((batch, self._features), self.blobs[0].dtype)

    def _labels(self, bottom: list[Blob]) -> np.ndarray:
        classes, where = len(self.blobs[0].data), describe(self, bottom, 1)

        def error(index: int, value: float) -> Exception:
            return self.error(
                f"label {value:g} of sample {index} in bottom {where} is none of the {classes} "
                f"classes (0 to {classes - 1})"
            )

        return checked_indices(bottom[1].data.reshape(-1), classes, False, error)

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        difference = self._difference
        gather(self.blobs[0].data, self._labels(bottom), difference)
        np.subtract(bottom[0].data.reshape(difference.shape), difference, out=difference)
        return np.square(difference).sum(dtype=np.float64) / len(difference) / 2

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 1)
        difference = self._difference
        if self.param_propagate_down[0]:
            labels, centres = self._labels(bottom), self.blobs[0].diff
            counts = xp().ones((len(centres), 1), difference.dtype)
            scatter_add(xp().ones((len(labels), 1), difference.dtype), labels, counts)
            scatter_add(-difference / counts[labels], labels, centres)
        if propagate_down[0]:
            dx = bottom[0].diff.reshape(difference.shape)
            np.multiply(difference, self.weight_of(top) / len(difference), out=dx)
