"""Dropout and SeLuDropout."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.dropout import dropout
from pycaffe_dist.kernels.elementwise import blockwise
from pycaffe_dist.layers.base import Layer, Need, is_test, register
from pycaffe_dist.layers.random_key import RandomKey


@register("Dropout")
class Dropout(Layer):
    """In training, zeroes each element with probability dropout_ratio and scales up the others.

    In the TEST phase the top is the bottom.  (Srivastava et al., 2014; scaled while training, as
    Caffe does.)  With scale_train false all elements are scaled down in the TEST phase instead
    (tianzhi0549/CTPN); with sample_weights_test it drops in the TEST phase, too
    (alexgkendall/caffe-segnet).
    """

    in_place = True
    keeps_sign = True
    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._ratio = self.param.dropout_param.dropout_ratio
        if not 0 <= self._ratio < 1:
            raise self.error(f"needs 0 <= dropout_ratio < 1, found {self._ratio}")
        param = self.param.dropout_param
        self._drops = param.sample_weights_test or not is_test(self.phase)
        # The factor of elements that are not dropped.
        if param.scale_train:
            self._scale = 1 / (1 - self._ratio) if self._drops else 1.0
        else:
            self._scale = 1.0 if self._drops else 1 - self._ratio
        self._key = RandomKey(self.rng("mask"))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape_like(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._key.draw()
        self._apply(bottom[0].data, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            self._apply(top[0].diff, bottom[0].diff)

    @property
    def computes(self) -> bool:  # type: ignore[override]
        """Not in place in the TEST phase, unless elements are scaled down or dropped there."""
        return self._drops or self._scale != 1 or self.param.bottom[0] != self.param.top[0]

    def _apply(self, source: np.ndarray, target: np.ndarray) -> None:
        if self._drops:
            dropout(source, target, self._key.array, self._ratio, self._scale)
        elif self._scale != 1:
            blockwise(self._shrink, source, target)
        elif source is not target:
            np.copyto(target, source)

    def _shrink(self, source: np.ndarray, target: np.ndarray) -> None:
        np.multiply(source, self._scale, out=target)


@register("SeLuDropout")
class SeLuDropout(Layer):
    """In training, a·x + b, or a·alpha + b with probability dropout_ratio.

    a and b keep mean 0 and variance 1.  In the TEST phase the top is the bottom.  Follows
    HolmesShuan/SNNs-Self-Normalizing-Neural-Networks-Caffe-Reimplementation.  (Klambauer et al.,
    2017.)
    """

    in_place = True
    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.selu_dropout_param
        self._ratio, self._alpha = dropped, alpha = param.dropout_ratio, param.alpha
        if not 0 < dropped < 1:
            raise self.error(f"needs 0 < dropout_ratio < 1, found {dropped:g}")
        self._factor = ((1 - dropped) * (1 + alpha * alpha * dropped)) ** -0.5
        # What a dropped value becomes.
        self._floor = self._factor * alpha * (1 - dropped)
        self._key = RandomKey(self.rng("mask"))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape_like(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        if is_test(self.phase):
            if x is not y:
                np.copyto(y, x)
            return
        self._key.draw()
        blockwise(self._center, x, y)
        dropout(y, y, self._key.array, self._ratio, self._factor)
        blockwise(self._raise, y)

    def _center(self, x: np.ndarray, y: np.ndarray) -> None:
        np.subtract(x, self._alpha, out=y)

    def _raise(self, y: np.ndarray) -> None:
        y += self._floor

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0] and not is_test(self.phase):
            dropout(top[0].diff, bottom[0].diff, self._key.array, self._ratio, self._factor)
        elif propagate_down[0] and top[0] is not bottom[0]:
            np.copyto(bottom[0].diff, top[0].diff)
