"""Eltwise: products, weighted sums and maxima of blobs of one shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.eltwise import (
    maximum,
    maximum_gradient,
    product,
    sum_gradients,
    weighted_sum,
)
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import require_same_shape
from pycaffe_dist.layers.joined import Joined, Rectified
from pycaffe_dist.schema import caffe_pb2

PROD = caffe_pb2.EltwiseParameter.PROD
SUM = caffe_pb2.EltwiseParameter.SUM
MAX = caffe_pb2.EltwiseParameter.MAX


@register("Eltwise")
class Eltwise(Layer):
    """The product, sum (each bottom times its coeff) or maximum of two and more bottoms."""

    bottoms = Arity(2, None)

    @property
    def backward_needs_bottom(self) -> Need:  # type: ignore[override]
        """The factors of a product."""
        return Need.VALUE if self.param.eltwise_param.operation == PROD else Need.NONE

    @property
    def backward_needs_top(self) -> Need:  # type: ignore[override]
        """The product, if its gradient divides it by each factor."""
        param = self.param.eltwise_param
        divides = param.operation == PROD and not param.stable_prod_grad
        return Need.VALUE if divides else Need.NONE

    @property
    def in_place(self) -> bool:  # type: ignore[override]
        """A sum may take its first bottom's place."""
        return self.param.eltwise_param.operation == SUM

    @property
    def backward_in_place(self) -> bool:  # type: ignore[override]
        """A sum's first gradient, often equal to the top's, may overwrite it."""
        return self.param.eltwise_param.operation == SUM

    @property
    def only_kernels(self) -> bool:  # type: ignore[override]
        """Sums alone: NumPy does a part of the others."""
        return self.param.eltwise_param.operation == SUM

    @property
    def is_plain_sum(self) -> bool:
        """Whether it is a sum of its bottoms without coefficients."""
        is_sum = self.param.eltwise_param.operation == SUM
        return is_sum and all(value == 1 for value in self._coefficients)

    def joined(self, following: Sequence[Layer]) -> Joined | None:
        """Join a rectifier to a sum."""
        slope = following[0].rectifier_slope
        if slope is None or self.param.eltwise_param.operation != SUM:
            return None
        return Rectified(self, following[0], self._sum, self._sum_gradients)

    def _sum(self, bottom: list[Blob], top: list[Blob], slope: float | None = None) -> None:
        values = [blob.data for blob in bottom]
        weighted_sum(top[0].data, values, self._coefficients, slope)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.eltwise_param
        if len(param.coeff) not in (0, len(bottom)):
            raise self.error(f"has {len(param.coeff)} coeff for {len(bottom)} bottoms")
        if param.coeff and param.operation == PROD:
            raise self.error("takes coeff for SUM only")
        self._coefficients = list(param.coeff) or [1.0] * len(bottom)
        self._winner = xp().empty(0, np.int32)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for index in range(1, len(bottom)):
            require_same_shape(self, bottom, 0, index)
        top[0].reshape_like(bottom[0])
        is_max = self.param.eltwise_param.operation == MAX
        if is_max and self._winner.shape != bottom[0].shape:
            self._winner = xp().empty(bottom[0].shape, np.int32)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        operation = self.param.eltwise_param.operation
        values = [blob.data for blob in bottom]
        if operation == PROD:
            product(top[0].data, values)
        elif operation == SUM:
            self._sum(bottom, top)
        else:
            maximum(top[0].data, self._winner, values)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        operation = self.param.eltwise_param.operation
        if operation == SUM:
            self._sum_gradients(top, propagate_down, bottom)
            return
        dy = top[0].diff
        for index in range(len(bottom)):
            if not propagate_down[index]:
                continue
            dx = bottom[index].diff
            if operation == MAX:
                maximum_gradient(dy, self._winner, index, dx)
            elif self.param.eltwise_param.stable_prod_grad:
                others = [blob.data for k, blob in enumerate(bottom) if k != index]
                product(dx, [dy, *others])
            else:
                with np.errstate(all="ignore"):
                    np.divide(top[0].data, bottom[index].data, out=dx)
                dx *= dy

    def _sum_gradients(
        self,
        top: list[Blob],
        propagate_down: list[bool],
        bottom: list[Blob],
        slope: float | None = None,
    ) -> None:
        """Set the gradients of a sum; with a ``slope`` rectify the top's diff first."""
        wanted = [index for index, wanted in enumerate(propagate_down) if wanted]
        gradients = [bottom[index].diff for index in wanted]
        coefficients = [self._coefficients[index] for index in wanted]
        sign = None if slope is None else top[0].data
        sum_gradients(top[0].diff, gradients, coefficients, sign, 1.0 if slope is None else slope)
