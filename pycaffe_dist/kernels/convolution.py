"""Convolution: forward, and the gradients with respect to data, weights and bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.device import parallel_for
from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.convolution_generic import GenericConvolution
from pycaffe_dist.kernels.im2col import ConvolutionGeometry

__all__ = ["Convolution", "ConvolutionGeometry", "add_bias", "bias_gradient"]

# A chunk of an element-wise loop should be worth a thread's waking up.
ELEMENTS_PER_CHUNK = 1 << 15


class Convolution:
    """The plan of one convolution: shapes are fixed, arrays come with each call.

    ``x_shape`` is (N, C, *spatial), ``w_shape`` is (M, C/group, *kernel); y is (N, M, *output).
    All arrays are C-contiguous and of ``dtype``.  A deconvolution uses the plan of the convolution
    that it transposes, with the roles of forward and backward_data swapped.
    """

    def __init__(
        self,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        geometry: ConvolutionGeometry,
        dtype: Any = np.float32,
    ):
        self.geometry = geometry
        self.y_shape = (x_shape[0], w_shape[0], *geometry.output_shape(x_shape[2:]))
        self._generic = GenericConvolution(x_shape, w_shape, geometry)

    def forward(
        self,
        x: np.ndarray,
        w: np.ndarray,
        b: np.ndarray | None,
        y: np.ndarray,
        relu_slope: float | None = None,
    ) -> None:
        """Set y to x * w + b (b of M elements), then to y·relu_slope where y < 0, if given."""
        self._generic.forward(x, w, y)
        if b is not None:
            add_bias(y, b)
        if relu_slope is not None:
            _apply_relu(y, relu_slope)

    def backward_data(self, dy: np.ndarray, w: np.ndarray, dx: np.ndarray) -> None:
        """Set dx to the gradient with respect to x."""
        self._generic.backward_data(dy, w, dx)

    def backward_weights(self, x: np.ndarray, dy: np.ndarray, dw: np.ndarray) -> None:
        """Add the gradient with respect to w to dw."""
        self._generic.backward_weights(x, dy, dw)


@jit(fast=True)
def _relu(begin, end, y, slope):
    for i in range(begin, end):
        if y[i] < 0:
            y[i] *= slope


def _apply_relu(y: np.ndarray, slope: float) -> None:
    parallel_for(_relu, y.size, y.reshape(-1), y.dtype.type(slope), grain=ELEMENTS_PER_CHUNK)


@jit(fast=True)
def _add_bias(begin, end, y, b):
    channels, pixels = y.shape[1], y.shape[2]
    if pixels == 1:
        for n in range(begin, end):
            row = y[n, :, 0]
            for m in range(channels):
                row[m] += b[m]
        return
    for n in range(begin, end):
        for m in range(channels):
            row, value = y[n, m], b[m]
            for p in range(pixels):
                row[p] += value


@kernel
def add_bias(y: np.ndarray, b: np.ndarray) -> None:
    """Add b (M elements) to every pixel of y (N, M, *spatial)."""
    planes = y.reshape(y.shape[0], y.shape[1], -1)
    grain = max(1, ELEMENTS_PER_CHUNK * y.shape[0] // max(1, y.size))
    parallel_for(_add_bias, y.shape[0], planes, b.reshape(-1), grain=grain)


@jit(fast=True)
def _bias_gradient(begin, end, dy, db):
    images, _, pixels = dy.shape
    if pixels == 1:
        for n in range(images):
            row = dy[n, :, 0]
            for m in range(begin, end):
                db[m] += row[m]
        return
    for m in range(begin, end):
        total = db.dtype.type(0)
        for n in range(images):
            row = dy[n, m]
            part = db.dtype.type(0)
            for p in range(pixels):
                part += row[p]
            total += part
        db[m] += total


@kernel
def bias_gradient(dy: np.ndarray, db: np.ndarray) -> None:
    """Add the sums of dy (N, M, *spatial) over images and pixels to db (M elements)."""
    planes = dy.reshape(dy.shape[0], dy.shape[1], -1)
    grain = max(1, ELEMENTS_PER_CHUNK * dy.shape[1] // max(1, dy.size))
    parallel_for(_bias_gradient, dy.shape[1], planes, db.reshape(-1), grain=grain)
