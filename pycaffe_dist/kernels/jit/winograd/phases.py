"""Strided convolutions of few channels by Winograd on their phases.

With stride s, kernel row t meets only input rows with one remainder modulo s; so do columns.  Each
channel is therefore split into s² channels, its phases, by the remainders of rows and columns.  In
phases the convolution has stride 1 and a kernel ⌈k/s⌉ wide: an 11×11 kernel of stride 4 becomes one
of 3×3, which Winograd computes fast.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.im2col import ConvolutionGeometry
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.winograd.convolution import WinogradConvolution
from pycaffe_dist.kernels.jit.winograd.gradient import WinogradGradient
from pycaffe_dist.threads import in_every_pass, parallel_for

# The number of images that are split into phases at a time.
IMAGES = 4

Shapes = tuple[tuple[int, ...], tuple[int, ...], ConvolutionGeometry]


def phase_shapes(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], geometry: ConvolutionGeometry
) -> Shapes | None:
    """Return the shapes of x and w and the geometry in phases, or None for other convolutions."""
    kernel, stride = geometry.kernel, geometry.stride
    plain = len(kernel) == 2 and len({*kernel}) == len({*stride}) == len({*geometry.dilation}) == 1
    if not plain or stride[0] == 1 or geometry.dilation[0] > 1 or kernel[0] < stride[0]:
        return None
    taps, phases = -(-kernel[0] // stride[0]), stride[0] ** 2
    output = geometry.output_shape(x_shape[2:])
    channels = x_shape[1] * phases
    x_phases = (x_shape[0], channels, *(extent + taps - 1 for extent in output))
    once = (1, 1)
    turned = ConvolutionGeometry((taps, taps), once, (0, 0), once, geometry.group)
    return x_phases, (w_shape[0], w_shape[1] * phases, taps, taps), turned


class _Phases:
    """The base of both directions: the phases of some images, and of the weights."""

    def __init__(
        self, x_shape: tuple[int, ...], w_shape: tuple[int, ...], geometry: ConvolutionGeometry
    ):
        shapes = phase_shapes(x_shape, w_shape, geometry)
        assert shapes is not None  # the caller has chosen this way
        x_phases, self._w_shape, self._geometry = shapes
        images = x_shape[0]
        self._images = next(n for n in range(min(IMAGES, images), 0, -1) if images % n == 0)
        self._x_shape = (self._images, *x_phases[1:])
        self._stride, self._pads = geometry.stride[0], geometry.pad
        self._x, self._w = np.zeros(self._x_shape, np.float32), np.zeros(self._w_shape, np.float32)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return self._x.nbytes + self._w.nbytes

    def _split(self, x: np.ndarray, phases: np.ndarray) -> None:
        planes = x.shape[0] * x.shape[1]
        parallel_for(
            _split_planes,
            planes,
            x.reshape(planes, *x.shape[2:]),
            phases.reshape(planes, self._stride, self._stride, *phases.shape[2:]),
            self._pads,
        )


class PhasedConvolution(_Phases):
    """Forward of one strided convolution, like `RowConvolution`."""

    def __init__(self, target: Target, *shapes: Any, tile: int):
        super().__init__(*shapes)
        parts = self._x_shape, self._w_shape, self._geometry
        self._winograd = WinogradConvolution(target, *parts, backward=False, tile=tile)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return super().scratch_bytes + self._winograd.scratch_bytes

    def hold(self, w: np.ndarray) -> None:
        """Split the weights, and let Winograd take them."""
        self._split_weights(w)
        self._winograd.hold(self._w)

    def _split_weights(self, w: np.ndarray) -> None:
        for whole, part in _pairs(w, self._w, self._stride):
            in_every_pass(np.copyto, part, whole)

    def run(
        self,
        x: np.ndarray,
        w: np.ndarray | None,
        b: np.ndarray | None,
        y: np.ndarray,
        slope: float = 1.0,
    ) -> None:
        """Set y to the convolution of x, plus b; multiply negative results by slope."""
        if w is not None:
            self._split_weights(w)
        phases = None if w is None else self._w
        for n in range(0, x.shape[0], self._images):
            self._split(x[n : n + self._images], self._x)
            self._winograd.run(self._x, phases, b, y[n : n + self._images], slope)


class PhasedGradient(_Phases):
    """The weight gradient of one strided convolution; adds to dw."""

    def __init__(self, target: Target, *shapes: Any, tile: int):
        super().__init__(*shapes)
        parts = self._x_shape, self._w_shape, self._geometry
        self._winograd = WinogradGradient(target, *parts, tile)

    def run(self, x: np.ndarray, dy: np.ndarray, dw: np.ndarray) -> None:
        """Add the gradient to dw."""
        in_every_pass(np.copyto, self._w, 0)
        for n in range(0, x.shape[0], self._images):
            self._split(x[n : n + self._images], self._x)
            self._winograd.run(self._x, dy[n : n + self._images], self._w)
        for whole, part in _pairs(dw, self._w, self._stride):
            in_every_pass(np.add, whole, part, whole)


def _pairs(w: np.ndarray, phases: np.ndarray, stride: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs of views: a part of the weights, and the phase that equals it."""
    split = phases.reshape(*w.shape[:2], stride, stride, *phases.shape[2:])
    pairs = []
    for i in range(stride):
        for j in range(stride):
            whole = w[:, :, i::stride, j::stride]
            pairs.append((whole, split[:, :, i, j, : whole.shape[2], : whole.shape[3]]))
    return pairs


@jit
def _split_planes(begin, end, x, phases, pads):
    """phases[plane, i, j, r, c] = x[plane, r·stride + i - pad, c·stride + j - pad], 0 outside."""
    height, width = x.shape[1], x.shape[2]
    stride, rows, columns = phases.shape[1], phases.shape[3], phases.shape[4]
    for plane in range(begin, end):
        for i in range(stride):
            for y in range(rows):
                row = y * stride + i - pads[0]
                for j in range(stride):
                    target = phases[plane, i, j, y]
                    if row < 0 or row >= height:
                        target[:] = 0
                        continue
                    source, first = x[plane, row], j - pads[1]
                    low = min(columns, (max(0, -first) + stride - 1) // stride)
                    high = max(low, min(columns, (width - first + stride - 1) // stride))
                    target[:low] = 0
                    for column in range(low, high):
                        target[column] = source[column * stride + first]
                    target[high:] = 0
