"""Convolution: forward, and the gradients with respect to data, weights and bias.

Float32 runs on machine code made for the layer's shape (see `pycaffe_dist.kernels.jit`); float64
and unusual convolutions run on plain Numba loops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from pycaffe_dist.kernels import plan
from pycaffe_dist.kernels.bias_add import add_bias, bias_gradient
from pycaffe_dist.kernels.convolution_generic import GenericConvolution
from pycaffe_dist.kernels.filling import clear
from pycaffe_dist.kernels.im2col import ConvolutionGeometry
from pycaffe_dist.kernels.inner_product import InnerProduct
from pycaffe_dist.kernels.jit import workspace
from pycaffe_dist.kernels.jit.codegen.target import Target, target
from pycaffe_dist.kernels.jit.convolution.depthwise import DepthwiseConvolution, has_microkernels
from pycaffe_dist.kernels.jit.convolution.gathered import GatheredConvolution, gathers
from pycaffe_dist.kernels.jit.convolution.rows import WIDEST_KERNEL, RowConvolution
from pycaffe_dist.kernels.jit.convolution.sampling import spread
from pycaffe_dist.kernels.jit.convolution.weights import WeightGradient
from pycaffe_dist.kernels.jit.gemm.channels import ChannelProduct, channels_are_faster
from pycaffe_dist.kernels.jit.gemm.pixels import PixelGradient
from pycaffe_dist.kernels.jit.gemm.products import FlatProduct
from pycaffe_dist.kernels.jit.winograd.convolution import WinogradConvolution
from pycaffe_dist.kernels.jit.winograd.costs import best_phase_tile, best_tile
from pycaffe_dist.kernels.jit.winograd.gradient import WinogradGradient
from pycaffe_dist.kernels.jit.winograd.phases import PhasedConvolution, PhasedGradient
from pycaffe_dist.kernels.pooling import PoolingGeometry, max_pool_forward

__all__ = [
    "Convolution",
    "ConvolutionGeometry",
    "LibraryConvolution",
    "add_bias",
    "bias_gradient",
]


@plan
class Convolution:
    """The plan of one convolution: shapes are fixed, arrays come with each call.

    ``x_shape`` is (N, C, *spatial), ``w_shape`` is (M, C/group, *kernel); y is (N, M, *output).
    All arrays are C-contiguous and of ``dtype``.  A deconvolution uses the plan of the convolution
    that it transposes, with the roles of forward and backward_data swapped.  ``alone`` allows
    forward the fastest way for these images and for weights that are held, whatever is best for
    larger batches.  With ``adds``, where `can_add`, forward adds to y.  ``generic_reason`` says why
    there is no specialised machine code for this convolution, or is None.
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
        self.geometry = geometry
        self._held: np.ndarray | None = None
        self.y_shape = (x_shape[0], w_shape[0], *geometry.output_shape(x_shape[2:]))
        self._target = target() if np.dtype(dtype) == np.float32 else None
        self.generic_reason = self._why_generic(w_shape)
        if self.generic_reason is not None:
            self._ways: Any = GenericConvolution(x_shape, w_shape, geometry)
        elif _is_depthwise(w_shape, geometry):
            self._ways = DepthwiseConvolution(self._target, x_shape, w_shape, geometry)
        elif geometry.group == 1 and geometry.kernel == x_shape[2:] and not any(geometry.pad):
            self._ways = _AsInnerProduct(x_shape, w_shape, alone)
        elif math.prod((*geometry.kernel, *geometry.stride)) == 1 and not any(geometry.pad):
            self._ways = _Pointwise(self._target, x_shape, w_shape, geometry, adds)
        elif geometry.kernel == (1, 1) and not any(geometry.pad):
            self._ways = _SampledPointwise(self._target, x_shape, w_shape, geometry, adds)
        else:
            self._ways = _ByRows(self._target, x_shape, w_shape, geometry, alone=alone)

    def _why_generic(self, w_shape: tuple[int, ...]) -> str | None:
        if self._target is None:
            return "float64, or PCAFFE_SIMD=none"
        if _is_depthwise(w_shape, self.geometry):
            known = has_microkernels(self.geometry)
            return None if known else "depthwise, with many taps or a stride of more than 2"
        if self.geometry.kernel[-1] > WIDEST_KERNEL:
            return f"kernel rows of more than {WIDEST_KERNEL} columns"
        return None

    @property
    def can_add(self) -> bool:
        """Whether there is a plan like this whose forward ``adds``."""
        return isinstance(self._ways, _Pointwise)

    @property
    def scratch_bytes(self) -> int:
        """The memory that this plan keeps beyond its arguments, so far."""
        return self._ways.scratch_bytes

    def hold(self, w: np.ndarray) -> None:
        """Take the weights for every later `forward` without them; a copy is rearranged once.

        The plan may keep ``w`` itself.
        """
        hold = getattr(self._ways, "hold", None)
        if hold is None:
            self._held = w
        else:
            hold(w)

    def forward(
        self,
        x: np.ndarray,
        w: np.ndarray | None,
        b: np.ndarray | None,
        y: np.ndarray,
        relu_slope: float | None = None,
    ) -> None:
        """Set y to x * w + b (b of M elements), then to y·relu_slope where y < 0, if given.

        Without w the weights are those of `hold`.  A plan that ``adds`` adds y before the slope.
        """
        slope = 1.0 if relu_slope is None else relu_slope
        self._ways.forward(x, self._held if w is None else w, b, y, slope)

    def backward_data(self, dy: np.ndarray, w: np.ndarray, dx: np.ndarray) -> None:
        """Set dx to the gradient with respect to x."""
        self._ways.backward_data(dy, w, dx)

    def backward_weights(
        self, x: np.ndarray, dy: np.ndarray, dw: np.ndarray, add: bool = True
    ) -> None:
        """Add the gradient with respect to w to dw, or set dw to it."""
        if not add:
            clear(dw)
        self._ways.backward_weights(x, dy, dw)


@plan
class LibraryConvolution(Convolution):
    """A convolution that may use a vendor's library; on the CPU there is none."""


class _ByRows:
    """Any kernel of few columns: the row kernel or Winograd, and the weight gradient.

    Each direction is planned at its first use: a net's first layer needs no data gradient.
    """

    def __init__(self, *plan: Any, alone: bool = False):
        self._plan, self._alone = plan, alone

    @functools.cached_property
    def _forward(self) -> Any:
        if gathers(*self._plan):
            return GatheredConvolution(*self._plan)
        tile = best_tile(*self._plan, "forward", self._alone)
        if tile:
            return WinogradConvolution(*self._plan, backward=False, tile=tile)
        tile = best_phase_tile(*self._plan, "forward", self._alone)
        if tile:
            return PhasedConvolution(*self._plan, tile=tile)
        return RowConvolution(*self._plan, backward=False)

    @functools.cached_property
    def _data(self) -> Any:
        tile = best_tile(*self._plan, "data")
        if tile:
            return WinogradConvolution(*self._plan, backward=True, tile=tile)
        return RowConvolution(*self._plan, backward=True)

    @functools.cached_property
    def _weights(self) -> Any:
        tile = best_tile(*self._plan, "weights")
        if tile:
            return WinogradGradient(*self._plan, tile)
        tile = best_phase_tile(*self._plan, "weights")
        return PhasedGradient(*self._plan, tile=tile) if tile else WeightGradient(*self._plan)

    @property
    def scratch_bytes(self) -> int:
        return sum(getattr(plan, "scratch_bytes", 0) for plan in vars(self).values())

    def hold(self, w: Any) -> None:
        self._forward.hold(w)

    def forward(self, x: Any, w: Any, b: Any, y: Any, slope: float) -> None:
        self._forward.run(x, w, b, y, slope)

    def backward_data(self, dy: Any, w: Any, dx: Any) -> None:
        self._data.run(dy, w, None, dx)

    def backward_weights(self, x: Any, dy: Any, dw: Any) -> None:
        self._weights.run(x, dy, dw)


class _Pointwise(_ByRows):
    """1×1 kernels: each image is a matrix product, with the image as its large operand."""

    def __init__(
        self,
        target: Target,
        x_shape: Any,
        w_shape: Any,
        geometry: ConvolutionGeometry,
        adds: bool,
    ):
        pixels, group = math.prod(x_shape[2:]), geometry.group
        flat = ConvolutionGeometry((1,), (1,), (0,), (1,), group)
        super().__init__(target, (*x_shape[:2], pixels), (*w_shape[:2], 1), flat)
        self._sizes = w_shape[0] // group, w_shape[1], pixels, x_shape[0], group
        self._adds = adds

    @functools.cached_property
    def _forward(self) -> Any:
        outputs, inputs, *_ = self._sizes
        return self._product(outputs, inputs)

    @functools.cached_property
    def _data(self) -> ChannelProduct | FlatProduct:
        outputs, inputs, *_ = self._sizes
        return self._product(inputs, outputs)

    def _product(self, rows: int, depth: int) -> ChannelProduct | FlatProduct:
        unit, (pixels, images, group) = self._plan[0], self._sizes[2:]
        by_channels = channels_are_faster(unit, rows, pixels, depth)
        kind = ChannelProduct if by_channels else FlatProduct
        return kind(unit, rows, pixels, depth, images, group)

    @functools.cached_property
    def _weights(self) -> PixelGradient:
        return PixelGradient(self._plan[0], *self._sizes)

    def hold(self, w: Any) -> None:
        self._forward.pack(w)

    def forward(self, x: Any, w: Any, b: Any, y: Any, slope: float) -> None:
        self._forward.run(w, x, y, bias=b, slope=slope, add=self._adds)

    def backward_data(self, dy: Any, w: Any, dx: Any) -> None:
        self._data.run(w, dy, dx, transposed=True)


class _SampledPointwise(_Pointwise):
    """1×1 kernels with a stride: the pixels that they read are first copied side by side."""

    def __init__(
        self,
        target: Target,
        x_shape: Any,
        w_shape: Any,
        geometry: ConvolutionGeometry,
        adds: bool,
    ):
        self._sampled = (*x_shape[:2], *geometry.output_shape(x_shape[2:]))
        self._stride, once = geometry.stride, replace(geometry, stride=(1, 1))
        # A window of one pixel: its maximum is the pixel.
        self._pixels = PoolingGeometry((1, 1), geometry.stride)
        super().__init__(target, self._sampled, w_shape, once, adds)

    @contextmanager
    def _lend(self) -> Iterator[np.ndarray]:
        with workspace.shared.lend(math.prod(self._sampled)) as memory:
            yield memory.reshape(self._sampled)

    def forward(self, x: Any, w: Any, b: Any, y: Any, slope: float) -> None:
        with self._lend() as sampled:
            max_pool_forward(x, sampled, None, self._pixels)
            super().forward(sampled, w, b, y, slope)

    def backward_data(self, dy: Any, w: Any, dx: Any) -> None:
        with self._lend() as sampled:
            super().backward_data(dy, w, sampled)
            spread(sampled, dx, self._stride)

    def backward_weights(self, x: Any, dy: Any, dw: Any) -> None:
        with self._lend() as sampled:
            max_pool_forward(x, sampled, None, self._pixels)
            super().backward_weights(sampled, dy, dw)


class _AsInnerProduct:
    """A kernel that is as large as the image: one product over all images."""

    def __init__(self, x_shape: tuple[int, ...], w_shape: tuple[int, ...], alone: bool):
        inputs = math.prod(w_shape[1:])
        self._product = InnerProduct(x_shape[0], w_shape[0], inputs, alone=alone)

    @property
    def scratch_bytes(self) -> int:
        return self._product.scratch_bytes

    def forward(self, x: Any, w: Any, b: Any, y: Any, slope: float) -> None:
        relu_slope = None if slope == 1 else slope
        self._product.forward(_matrix(x), _matrix(w), b, _matrix(y), relu_slope)

    def backward_data(self, dy: Any, w: Any, dx: Any) -> None:
        self._product.backward_data(_matrix(dy), _matrix(w), _matrix(dx))

    def backward_weights(self, x: Any, dy: Any, dw: Any) -> None:
        self._product.backward_weights(_matrix(x), _matrix(dy), _matrix(dw))


def _is_depthwise(w_shape: tuple[int, ...], geometry: ConvolutionGeometry) -> bool:
    return w_shape[1] == 1 and w_shape[0] == geometry.group


def _matrix(x: np.ndarray) -> np.ndarray:
    return x.reshape(x.shape[0], -1)
