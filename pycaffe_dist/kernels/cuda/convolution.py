"""Convolutions on a GPU: columns and cuBLAS, or direct kernels if the matrices would be thin."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.kernels.cuda import cudnn, kernels
from pycaffe_dist.kernels.cuda.bias_add import finish, sum_in_parts
from pycaffe_dist.kernels.cuda.gemm import convolution_gemm as gemm
from pycaffe_dist.kernels.cuda.im2col import Im2colPlan, fold, unfold
from pycaffe_dist.kernels.cuda.inner_product import InnerProduct, like
from pycaffe_dist.kernels.cuda.rows import block_size, row_shift, splits
from pycaffe_dist.kernels.im2col import ConvolutionGeometry

_cu = kernels("convolution")

# Columns take at most so many bytes at a time, or the bytes of one image.
WORKSPACE_BYTES = 1 << 28
# Images of fewer output pixels lie side by side in one matrix, so that they fill cuBLAS's tiles.
MANY_PIXELS = 256
# Direct kernels read each input once for each tap: cuBLAS is better for more taps.
MOST_DIRECT = 512


class Convolution:
    """See `pycaffe_dist.kernels.convolution.Convolution`.

    Where x, y and their gradients have 16 bits, parameters are float32.
    """

    generic_reason = None
    can_add = False  # so ``adds`` is never asked for; ``alone`` changes nothing here

    def __init__(
        self,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        geometry: ConvolutionGeometry,
        dtype: Any = np.float32,
        alone: bool = False,
        adds: bool = False,
    ):
        self.geometry = geometry
        self._held: Any = None
        self.y_shape = (x_shape[0], w_shape[0], *geometry.output_shape(x_shape[2:]))
        multiplier, taps = w_shape[0] // geometry.group, math.prod(geometry.kernel)
        pointwise = taps * math.prod(geometry.stride) == 1 and not any(geometry.pad)
        if geometry.group == 1 and geometry.kernel == x_shape[2:] and not any(geometry.pad):
            self._ways: Any = _AsInnerProduct(x_shape, w_shape)
        elif w_shape[1] == 1 and (multiplier == 1 or multiplier * taps <= MOST_DIRECT):
            self._ways = _Direct(x_shape, w_shape, geometry)
        elif pointwise and geometry.group == 1:
            self._ways = _Pointwise(x_shape, w_shape, geometry)
        else:
            self._ways = _ByColumns(x_shape, w_shape, geometry)

    @property
    def scratch_bytes(self) -> int:
        """The memory that this plan keeps beyond its arguments; columns live as long as a call."""
        return self._ways.scratch_bytes

    def hold(self, w: Any) -> None:
        """Take the weights for every later `forward` without them."""
        self._held = w

    def forward(
        self, x: Any, w: Any | None, b: Any | None, y: Any, relu_slope: float | None = None
    ) -> None:
        """Set y to x * w + b (b of M elements), then to y·relu_slope where y < 0, if given."""
        w = self._held if w is None else w
        self._ways.forward(x, w, b, y, 1.0 if relu_slope is None else relu_slope)

    def backward_data(self, dy: Any, w: Any, dx: Any) -> None:
        """Set dx to the gradient with respect to x."""
        self._ways.backward_data(dy, w, dx)

    def backward_weights(self, x: Any, dy: Any, dw: Any, add: bool = True) -> None:
        """Add the gradient with respect to w to dw, or set dw to it."""
        self._ways.backward_weights(x, dy, dw, add)


class LibraryConvolution(Convolution):
    """See `pycaffe_dist.kernels.convolution.LibraryConvolution`: cuDNN replaces columns.

    Without cuDNN, or where it cannot do an operation, our kernels run. On a GPU that times plans,
    the faster of both runs, also without columns.
    """

    def __init__(
        self,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        geometry: ConvolutionGeometry,
        dtype: Any = np.float32,
        alone: bool = False,
        adds: bool = False,
    ):
        super().__init__(x_shape, w_shape, geometry, dtype, alone, adds)
        gpu = device.current_gpu()
        replaced = (_ByColumns, _Pointwise, _Direct) if gpu.times_plans else (_ByColumns,)
        if type(self._ways) in replaced and cudnn.can_do(x_shape, dtype):
            library = cudnn.library(gpu)
            if library is not None:
                self._ways = cudnn.LibraryWays(library, self._ways, x_shape, w_shape, geometry)


class _ByColumns:
    """Any convolution: im2col, and one product for several images and all groups.

    The columns are (images, depth, pixels), one product for each image; or, side by side,
    (group, depth/group, images, pixels), one for each group.
    """

    def __init__(
        self, x_shape: tuple[int, ...], w_shape: tuple[int, ...], geometry: ConvolutionGeometry
    ):
        self._plan = Im2colPlan(x_shape[2:], geometry)
        self._group, self._outputs = geometry.group, w_shape[0]
        self._depth, self._pixels = math.prod(w_shape[1:]), self._plan.pixels_out
        self._side_by_side = self._group > 1 or self._pixels < MANY_PIXELS

    @property
    def scratch_bytes(self) -> int:
        return self._plan.scratch_bytes

    def forward(self, x: Any, w: Any, b: Any, y: Any, slope: float) -> None:
        w = self._weights(w, x)
        for some_x, some_y in self._parts(x, y):
            columns = self._columns(some_x, self._side_by_side)
            if self._side_by_side:
                product = self._stack(some_x, self._outputs)
                gemm(w, columns, product)
                self._scatter(product, b, some_y, slope)
            else:
                gemm(w, columns, self._flat(some_y))
        if not self._side_by_side and (b is not None or slope != 1):
            finish(y, b, slope)

    def backward_data(self, dy: Any, w: Any, dx: Any) -> None:
        w = self._weights(w, dy)
        for some_dx, some_dy in self._parts(dx, dy):
            if self._side_by_side:
                columns = self._stack(some_dy, self._group * self._depth)
                gemm(w, self._gathered(some_dy), columns, trans_a=True)
            else:
                shape = len(some_dy), self._depth, self._pixels
                columns = device.xp().empty(shape, dy.dtype)
                gemm(w, self._flat(some_dy), columns, trans_a=True)
            fold(columns, some_dx, self._plan, *self._steps(some_dx, self._side_by_side))

    def backward_weights(self, x: Any, dy: Any, dw: Any, add: bool) -> None:
        target = self._weights(dw, dw)
        for some_x, some_dy in self._parts(x, dy):
            columns = self._columns(some_x, True)
            gemm(self._gathered(some_dy), columns, target, trans_b=True, beta=float(add))
            add = True

    def _parts(self, x: Any, y: Any) -> Iterator[tuple[Any, Any]]:
        """Divide the images into parts of about equal size whose columns fit the workspace."""
        one = self._group * self._depth * self._pixels * x.itemsize
        most = max(1, WORKSPACE_BYTES // max(1, one))
        count = -(-len(x) // most)
        if count == 1:
            yield x, y
            return
        for part in range(count):
            images = slice(len(x) * part // count, len(x) * (part + 1) // count)
            yield x[images], y[images]

    def _steps(self, x: Any, side_by_side: bool) -> tuple[int, int]:
        """Return the distances between rows and between images of the columns."""
        if side_by_side:
            return len(x) * self._pixels, self._pixels
        return self._pixels, self._depth * self._pixels

    def _columns(self, x: Any, side_by_side: bool) -> Any:
        if side_by_side:
            columns = self._stack(x, self._group * self._depth)
        else:
            columns = device.xp().empty((len(x), self._depth, self._pixels), x.dtype)
        unfold(x, columns, self._plan, *self._steps(x, side_by_side))
        return columns

    def _stack(self, x: Any, rows: int) -> Any:
        """Return an empty matrix for each group, of x's dtype; without groups just one."""
        columns = len(x) * self._pixels
        shape = (self._group, rows // self._group, columns)
        return device.xp().empty(shape if self._group > 1 else shape[1:], x.dtype)

    def _weights(self, w: Any, x: Any) -> Any:
        """Return the weights in x's dtype, as a matrix for each group; without groups just one."""
        matrix = like(w, x).reshape(self._outputs, self._depth)
        return matrix.reshape(self._group, -1, self._depth) if self._group > 1 else matrix

    def _flat(self, y: Any) -> Any:
        return y.reshape(len(y), self._outputs, self._pixels)

    def _gathered(self, dy: Any) -> Any:
        """Return dy (N, M, …) as (group, M/group, images·pixels)."""
        matrix = self._stack(dy, self._outputs)
        if len(dy) == 1:
            return dy.reshape(matrix.shape)
        lines, shift = self._outputs * len(dy), row_shift(self._pixels)
        sizes = len(dy), self._outputs, self._pixels, lines, shift
        _cu.gather_images(lines << shift, dy, matrix, *sizes)
        return matrix

    def _scatter(self, matrix: Any, b: Any, y: Any, slope: float) -> None:
        lines, shift = self._outputs * len(y), row_shift(self._pixels)
        sizes = len(y), self._outputs, self._pixels, lines, shift
        _cu.scatter_images(lines << shift, matrix, b, y, slope, *sizes)


class _Pointwise(_ByColumns):
    """1×1 kernels without groups: images are their own columns."""

    def forward(self, x: Any, w: Any, b: Any, y: Any, slope: float) -> None:
        gemm(self._weights(w, x), self._planes(x), self._planes(y))
        if b is not None or slope != 1:
            finish(y, b, slope)

    def backward_data(self, dy: Any, w: Any, dx: Any) -> None:
        gemm(self._weights(w, dy), self._planes(dy), self._planes(dx), trans_a=True)

    def backward_weights(self, x: Any, dy: Any, dw: Any, add: bool) -> None:
        # Either each image gives a matrix, and these are summed; or the images of x and dy are
        # copied side by side.  Choose the one that moves fewer elements.
        if self._outputs * self._depth > 2 * self._pixels * (self._outputs + self._depth):
            super().backward_weights(x, dy, dw, add)
            return
        parts = len(x)

        def sums(out: Any, add: bool) -> None:
            products = out.reshape(parts, self._outputs, self._depth)
            gemm(self._planes(dy), self._planes(x), products, trans_b=True, beta=float(add))

        sum_in_parts(sums, parts, dw, add)

    def _planes(self, x: Any) -> Any:
        return x.reshape(*x.shape[:2], self._pixels)


class _AsInnerProduct:
    """A kernel that is as large as the image: one product over all images."""

    scratch_bytes = 0

    def __init__(self, x_shape: tuple[int, ...], w_shape: tuple[int, ...]):
        self._product = InnerProduct(x_shape[0], w_shape[0], math.prod(w_shape[1:]))

    def forward(self, x: Any, w: Any, b: Any, y: Any, slope: float) -> None:
        self._product.forward(_matrix(x), _matrix(w), None, _matrix(y))
        if b is not None or slope != 1:
            finish(y, b, slope)

    def backward_data(self, dy: Any, w: Any, dx: Any) -> None:
        self._product.backward_data(_matrix(dy), _matrix(w), _matrix(dx))

    def backward_weights(self, x: Any, dy: Any, dw: Any, add: bool) -> None:
        self._product.backward_weights(_matrix(x), _matrix(dy), _matrix(dw), add)


def _matrix(x: Any) -> Any:
    return x.reshape(x.shape[0], -1)


class _Direct:
    """One input channel in each group: no columns, no matrices."""

    def __init__(
        self, x_shape: tuple[int, ...], w_shape: tuple[int, ...], geometry: ConvolutionGeometry
    ):
        self._plan = plan = Im2colPlan(x_shape[2:], geometry)
        self._channels, self._outputs = x_shape[1], w_shape[0]
        self._ratio = self._outputs, self._outputs // self._channels
        self._input = plan.pixels_in, plan.width, plan.rows, plan.count
        self._kernel = plan.row_taps, plan.kernel, plan.stride, plan.pad, plan.dilation

    @property
    def scratch_bytes(self) -> int:
        return self._plan.scratch_bytes

    def forward(self, x: Any, w: Any, b: Any, y: Any, slope: float) -> None:
        plan = self._plan
        lines, shift = len(x) * self._outputs * plan.rows, row_shift(plan.count)
        sizes = *self._ratio, *self._input, *self._kernel, lines, shift
        _cu.direct_forward(lines << shift, x, w, b, y, plan.starts, slope, *sizes)

    def backward_data(self, dy: Any, w: Any, dx: Any) -> None:
        plan = self._plan
        lines, shift = len(dx) * self._channels * plan.height, row_shift(plan.width)
        sizes = plan.height, *self._input[1:], plan.row_taps, plan.kernel, lines, shift
        _cu.direct_data(lines << shift, dy, w, dx, plan.sources, plan.last, *self._ratio, *sizes)

    def backward_weights(self, x: Any, dy: Any, dw: Any, add: bool) -> None:
        plan, images = self._plan, len(x)
        parts, shift = splits(images, self._outputs), row_shift(plan.count)
        threads = max(1 << shift, block_size(-(-images // parts) * plan.pixels_out))

        def sums(out: Any, add: bool) -> None:
            sizes = images, *self._ratio, *self._input, *self._kernel, parts, shift, add
            _cu.direct_weights.blocks(
                parts * self._outputs, x, dy, out, plan.starts, *sizes, threads=threads
            )

        sum_in_parts(sums, parts, dw, add)
