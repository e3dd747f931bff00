"""Convolution for any number of axes and either dtype: columns times weights, in plain Numba."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels.bias_add import ELEMENTS_PER_CHUNK, add_bias
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.gemm import add_product
from pycaffe_dist.kernels.im2col import ConvolutionGeometry, Im2colPlan, fold, unfold, valid_range
from pycaffe_dist.threads import parallel_for


class GenericConvolution:
    """One convolution by im2col and matrix products; groups of few channels need no columns.

    x is (N, C, *spatial), w is (M, C/group, *kernel), y is (N, M, *output).  Images are spread
    over the threads (channels for the weight gradient), so results do not depend on their number.
    """

    def __init__(
        self, x_shape: tuple[int, ...], w_shape: tuple[int, ...], geometry: ConvolutionGeometry
    ):
        self.plan = Im2colPlan(x_shape[2:], geometry)
        self.group = geometry.group
        self.channels, self.outputs = x_shape[1], w_shape[0]
        self.depthwise = w_shape[1] == 1 and w_shape[0] == geometry.group

    def _tables(self):
        return self.plan.rows, self.plan.last

    @property
    def scratch_bytes(self) -> int:
        """The memory that this plan keeps; columns live as long as a call."""
        return self.plan.rows.nbytes

    def forward(
        self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None, y: np.ndarray, slope: float
    ) -> None:
        """Set y to the convolution of x with w, plus b; multiply negative results by slope."""
        kernel = _depthwise_forward if self.depthwise else _forward_images
        args = (self._planes(x), self._matrix(w), self._planes(y), *self._tables())
        if self.depthwise:
            parallel_for(kernel, x.shape[0] * self.channels, *args)
        else:
            parallel_for(kernel, x.shape[0], *args, self.group)
        if b is not None:
            add_bias(y, b)
        if slope != 1:
            apply_relu(y, slope)

    def backward_data(self, dy: np.ndarray, w: np.ndarray, dx: np.ndarray) -> None:
        """Set dx to the gradient with respect to the input."""
        args = (self._planes(dy), self._matrix(w), self._planes(dx), *self._tables())
        if self.depthwise:
            parallel_for(_depthwise_backward, dx.shape[0] * self.channels, *args)
        else:
            parallel_for(_backward_images, dx.shape[0], *args, self.group)

    def backward_weights(self, x: np.ndarray, dy: np.ndarray, dw: np.ndarray) -> None:
        """Add the gradient with respect to the weights to dw."""
        args = (self._planes(x), self._planes(dy), dw.reshape(dw.shape[0], dw.shape[1], -1))
        if self.depthwise:
            parallel_for(_depthwise_weights, self.channels, *args, *self._tables())
        else:
            parallel_for(_weights_channels, self.channels, *args, *self._tables(), self.group)

    @staticmethod
    def _planes(x):
        return x.reshape(x.shape[0], x.shape[1], -1)

    @staticmethod
    def _matrix(w):
        return w.reshape(w.shape[0], -1)


@jit(fast=True)
def _relu(begin, end, y, slope):
    for i in range(begin, end):
        if y[i] < 0:
            y[i] *= slope


def apply_relu(y: np.ndarray, slope: float) -> None:
    """Multiply the negative elements of y by slope."""
    parallel_for(_relu, y.size, y.reshape(-1), y.dtype.type(slope), grain=ELEMENTS_PER_CHUNK)


@jit
def _forward_images(begin, end, x, w, y, rows, last, group):
    inputs, outputs = x.shape[1] // group, y.shape[1] // group
    taps = w.shape[1] // inputs
    columns = np.empty((w.shape[1], y.shape[2]), x.dtype)
    one = x.dtype.type(1)
    for n in range(begin, end):
        for g in range(group):
            for c in range(inputs):
                part = columns[c * taps : (c + 1) * taps]
                unfold(x[n, g * inputs + c], part, rows, last)
            target = y[n, g * outputs : (g + 1) * outputs]
            target[:] = 0
            add_product(w[g * outputs : (g + 1) * outputs], columns, target, one)


@jit
def _backward_images(begin, end, dy, w, dx, rows, last, group):
    inputs, outputs = dx.shape[1] // group, dy.shape[1] // group
    taps = w.shape[1] // inputs
    columns = np.empty((w.shape[1], dy.shape[2]), dx.dtype)
    transposed = np.empty((group, w.shape[1], outputs), w.dtype)
    for g in range(group):
        for m in range(outputs):
            for t in range(w.shape[1]):
                transposed[g, t, m] = w[g * outputs + m, t]
    one = dx.dtype.type(1)
    for n in range(begin, end):
        for g in range(group):
            columns[:] = 0
            add_product(transposed[g], dy[n, g * outputs : (g + 1) * outputs], columns, one)
            for c in range(inputs):
                plane = dx[n, g * inputs + c]
                plane[:] = 0
                fold(columns[c * taps : (c + 1) * taps], plane, rows, last)


@jit(fast=True)
def _dot(a, b):
    total = a.dtype.type(0)
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@jit
def _weights_channels(begin, end, x, dy, dw, rows, last, group):
    inputs, outputs = x.shape[1] // group, dy.shape[1] // group
    columns = np.empty((dw.shape[2], dy.shape[2]), x.dtype)
    for channel in range(begin, end):
        g, c = channel // inputs, channel % inputs
        for n in range(x.shape[0]):
            unfold(x[n, channel], columns, rows, last)
            for m in range(g * outputs, (g + 1) * outputs):
                for t in range(columns.shape[0]):
                    dw[m, c, t] += _dot(dy[n, m], columns[t])


@jit(fast=True)
def _depthwise_forward(begin, end, x, w, y, rows, last):
    kernel, stride, pad, dilation, width, count = last
    for i in range(begin, end):
        n, c = i // x.shape[1], i % x.shape[1]
        source, target = x[n, c], y[n, c]
        target[:] = 0
        for t in range(rows.shape[0]):
            for k in range(kernel):
                weight = w[c, t * kernel + k]
                offset = k * dilation - pad
                low, high = valid_range(offset, stride, width, count)
                for r in range(rows.shape[1]):
                    if rows[t, r] < 0:
                        continue
                    start = rows[t, r] + offset
                    out = target[r * count + low : r * count + high]
                    if stride == 1:
                        values = source[start + low : start + high]
                        for o in range(out.size):
                            out[o] += weight * values[o]
                    else:
                        for o in range(out.size):
                            out[o] += weight * source[start + (low + o) * stride]


@jit(fast=True)
def _depthwise_weights(begin, end, x, dy, dw, rows, last):
    kernel, stride, pad, dilation, width, count = last
    for c in range(begin, end):
        for n in range(x.shape[0]):
            source, gradient = x[n, c], dy[n, c]
            for t in range(rows.shape[0]):
                for k in range(kernel):
                    offset = k * dilation - pad
                    low, high = valid_range(offset, stride, width, count)
                    total = x.dtype.type(0)
                    for r in range(rows.shape[1]):
                        if rows[t, r] < 0:
                            continue
                        first = rows[t, r] + offset
                        values = gradient[r * count + low : r * count + high]
                        if stride == 1:
                            pixels = source[first + low : first + high]
                            for o in range(values.size):
                                total += values[o] * pixels[o]
                        else:
                            for o in range(values.size):
                                total += values[o] * source[first + (low + o) * stride]
                    dw[c, 0, t * kernel + k] += total


@jit(fast=True)
def _depthwise_backward(begin, end, dy, w, dx, rows, last):
    kernel, stride, pad, dilation, width, count = last
    for i in range(begin, end):
        n, c = i // dx.shape[1], i % dx.shape[1]
        source, target = dy[n, c], dx[n, c]
        target[:] = 0
        for t in range(rows.shape[0]):
            for k in range(kernel):
                weight = w[c, t * kernel + k]
                offset = k * dilation - pad
                low, high = valid_range(offset, stride, width, count)
                for r in range(rows.shape[1]):
                    if rows[t, r] < 0:
                        continue
                    start = rows[t, r] + offset
                    values = source[r * count + low : r * count + high]
                    if stride == 1:
                        out = target[start + low : start + high]
                        for o in range(out.size):
                            out[o] += weight * values[o]
                    else:
                        for o in range(values.size):
                            target[start + (low + o) * stride] += weight * values[o]
