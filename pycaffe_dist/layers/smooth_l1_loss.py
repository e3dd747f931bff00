"""SmoothL1Loss and SmoothL1LossOHEM: losses of boxes, quadratic near 0 and linear elsewhere."""

from __future__ import annotations

from functools import partial

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.elementwise import blockwise
from pycaffe_dist.layers.base import Arity, Need, register
from pycaffe_dist.layers.checking import mismatch
from pycaffe_dist.layers.loss import Loss, normalization_of


def _smooth_l1(steepness: float, d: np.ndarray, f: np.ndarray) -> None:
    """Set f to steepness·d²/2 where |d| < 1/steepness, and to |d| - 1/(2·steepness) elsewhere."""
    size = np.abs(d)
    near = np.minimum(size, 1 / steepness)
    np.multiply(near * steepness, size - near / 2, out=f)


def _slope(steepness: float, scale: float, d: np.ndarray, df: np.ndarray) -> None:
    """Set df to the derivative of `_smooth_l1` times ``scale``."""
    np.clip(d * steepness, -1, 1, out=df)
    df *= scale


class _SmoothL1(Loss):
    """What both losses share: the weighted difference of bottoms 0 and 1."""

    # Real nets state loss_weight: 1; the fork gives a loss without it no weight.
    default_loss_weight = 0.0
    backward_needs_bottom = Need.NONE
    steepness = 1.0

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._difference = self.new_blob()
        self._divisor = 1.0

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape()
        for index in range(1, len(bottom)):
            if _four_axes(bottom[index]) != _four_axes(bottom[0]):
                raise mismatch(self, bottom, 0, index, "need the same shape")
        self._difference.reshape_like(bottom[0])

    def _errors(self, bottom: list[Blob]) -> np.ndarray:
        """Return f(d) of the differences d of bottoms 0 and 1, times bottom 2, if there is one."""
        d = self._difference.data
        np.subtract(bottom[0].data, bottom[1].data.reshape(d.shape), out=d)
        if len(bottom) > 2:
            d *= bottom[2].data.reshape(d.shape)
        errors = np.empty_like(d)
        blockwise(partial(_smooth_l1, self.steepness), d, errors)
        return errors

    def allow_force_backward(self, bottom_index: int) -> bool:
        """The weights have no gradient."""
        return bottom_index < 2

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        # Nets for Caffe's forks ask for the gradient of weights that a Python layer makes.
        for blob, wanted in zip(bottom[2:], propagate_down[2:]):
            if wanted:
                blob.diff.fill(0)
        scale = self.weight_of(top) / self._divisor
        for index, sign in ((0, 1), (1, -1)):
            if propagate_down[index]:
                slope = partial(_slope, self.steepness, sign * scale)
                blockwise(slope, self._difference.data, bottom[index].diff)


def _four_axes(blob: Blob) -> tuple[int, ...]:
    """Return the shape with Caffe's old four axes: (N, C) and (N, C, 1, 1) are one."""
    return (*blob.shape, *[1] * (4 - blob.ndim))


@register("SmoothL1Loss")
class SmoothL1Loss(_SmoothL1):
    """Smooth L1 of the difference of two bottoms, summed and divided by bottom 0's first dimension.

    With d the difference, f(d) = (sigma·d)²/2 where |d| < 1/sigma², else |d| - 1/(2·sigma²).
    Bottom 2 multiplies d, bottom 3 f(d).  Four bottoms are the form of rbgirshick/caffe-fast-rcnn.
    Three bottoms are that of weiliu89/caffe (ssd): sigma is 1, and its gradient lacks the factor
    of bottom 2, so it is right for weights 0 and 1 only.  Without ``loss_weight`` this form has
    weight 1 and the others 0, as in these forks.
    """

    bottoms = Arity(2, 4)

    @property
    def backward_needs_bottom(self) -> Need:  # type: ignore[override]
        """The weights."""
        return Need.VALUE if len(self.param.bottom) == 4 else Need.NONE

    @property
    def default_loss_weight(self) -> float:  # type: ignore[override]
        """What the fork with so many bottoms has."""
        return 1.0 if len(self.param.bottom) == 3 else 0.0

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        sigma = self.param.smooth_l1_loss_param.sigma
        if not sigma > 0:
            raise self.error(f"needs a sigma above 0, found {sigma:g}")
        if len(bottom) == 3 and sigma != 1:
            raise self.error(f"has no sigma with three bottoms, found {sigma:g}")
        self.steepness = sigma * sigma

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        errors = self._errors(bottom)
        if len(bottom) == 4:
            errors *= bottom[3].data.reshape(errors.shape)
        self._divisor = bottom[0].shape[0]
        return errors.sum(dtype=np.float64) / self._divisor

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        super().backward(top, propagate_down, bottom)
        for index in range(2):
            if propagate_down[index] and len(bottom) == 4:
                for weights in bottom[2:]:
                    bottom[index].diff[...] *= weights.data.reshape(bottom[index].shape)


@register("SmoothL1LossOHEM")
class SmoothL1LossOHEM(_SmoothL1):
    """Smooth L1 with sigma 1 and a second top, the sum over channels at each place (intel/caffe).

    Bottom 2 multiplies the difference, and the gradient lacks this factor, so it is right for
    weights 0 and 1 only.  Without ``loss_weight`` the weight is 0.
    """

    bottoms = Arity(2, 3)
    tops = Arity(1, 2)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        num, _, *spatial = _four_axes(bottom[0])
        if len(top) > 1:
            top[1].reshape(num, 1, *spatial)

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        errors, param = self._errors(bottom), self.param.loss_param
        num, channels, *spatial = _four_axes(bottom[0])
        places = num * int(np.prod(spatial))
        mode, fixed = normalization_of(param), param.pre_fixed_normalizer
        # No place is ignored: VALID is FULL.
        self._divisor = self.divisor(mode, (num, places), places, fixed) or max(1, places)
        if len(top) > 1:
            errors.reshape(num, channels, -1).sum(axis=1, out=top[1].data.reshape(num, -1))
        return errors.sum(dtype=np.float64) / self._divisor
