"""Reduction of the last axes to one number."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.reduction import MAGNITUDE, PLAIN, SQUARE, reduce_rows
from pycaffe_dist.layers.base import Layer, Need, register
from pycaffe_dist.layers.checking import axis_of
from pycaffe_dist.schema import caffe_pb2

SUM = caffe_pb2.ReductionParameter.SUM
ASUM = caffe_pb2.ReductionParameter.ASUM
SUMSQ = caffe_pb2.ReductionParameter.SUMSQ
MEAN = caffe_pb2.ReductionParameter.MEAN


@register("Reduction")
class Reduction(Layer):
    """coeff times the sum, mean, or sum of magnitudes or squares of all axes from ``axis`` on."""

    @property
    def backward_needs_bottom(self) -> Need:  # type: ignore[override]
        """Only magnitudes and squares have a gradient that depends on the bottom."""
        varies = self.param.reduction_param.operation in (ASUM, SUMSQ)
        return Need.VALUE if varies else Need.NONE

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.reduction_param
        axis = axis_of(self, bottom, param.axis)
        top[0].reshape(*bottom[0].shape[:axis])
        self._shape = bottom[0].count_of(0, axis), bottom[0].count_of(axis)
        self._coefficient = param.coeff
        if param.operation == MEAN:
            self._coefficient /= max(1, self._shape[1])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        operation = self.param.reduction_param.operation
        power = {ASUM: MAGNITUDE, SUMSQ: SQUARE}.get(operation, PLAIN)
        x, y = bottom[0].data.reshape(self._shape), top[0].data.reshape(-1)
        reduce_rows(x, power, self._coefficient, y)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        operation = self.param.reduction_param.operation
        x, dx = bottom[0].data.reshape(self._shape), bottom[0].diff.reshape(self._shape)
        scale = top[0].diff.reshape(-1, 1) * self._coefficient
        if operation == ASUM:
            np.multiply(np.sign(x), scale, out=dx)
        elif operation == SUMSQ:
            np.multiply(x, 2 * scale, out=dx)
        else:
            dx[...] = scale
