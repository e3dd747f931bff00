"""Inner products (fully connected layers): y = x·Wᵀ + b and its gradients."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from pycaffe_dist.kernels import plan
from pycaffe_dist.kernels.bias_add import add_bias
from pycaffe_dist.kernels.convolution_generic import apply_relu
from pycaffe_dist.kernels.gemm import gemm
from pycaffe_dist.kernels.jit.codegen.target import target
from pycaffe_dist.kernels.jit.gemm import dots
from pycaffe_dist.kernels.jit.gemm.products import FlatProduct, TransposedProduct


@plan
class InnerProduct:
    """The plan of one inner product of M samples, N outputs and K inputs.

    x is (M, K), w is (N, K), or (K, N) if ``transposed``, b has N elements, y is (M, N); all
    C-contiguous and of ``dtype``.  Each direction is planned at its first use.  ``alone`` allows
    forward another order of sums for few samples than for many.
    """

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        transposed: bool = False,
        dtype: Any = np.float32,
        alone: bool = False,
    ):
        self.shape = (m, n, k)
        self._alone = alone and not transposed
        self.transposed = transposed
        self._target = target() if np.dtype(dtype) == np.float32 else None

    # Forward and backward_data are a product with the weights and a product with their transpose;
    # ``transposed`` says which is which.
    @functools.cached_property
    def _plain(self) -> FlatProduct:
        m, n, k = self.shape
        columns, depth = (n, k) if self.transposed else (k, n)
        return FlatProduct(self._target, m, columns, depth)

    @functools.cached_property
    def _turned(self) -> TransposedProduct:
        m, n, k = self.shape
        outputs, depth = (k, n) if self.transposed else (n, k)
        return TransposedProduct(self._target, m, outputs, depth)

    @functools.cached_property
    def _dots(self) -> dots.DotProduct | None:
        m, n, k = self.shape
        unit = self._target
        return dots.DotProduct(unit, m, n, k) if self._alone and dots.suits(unit, m, k) else None

    @functools.cached_property
    def _weights(self) -> FlatProduct:
        m, n, k = self.shape
        rows, columns = (k, n) if self.transposed else (n, k)
        return FlatProduct(self._target, rows, columns, m)

    @property
    def scratch_bytes(self) -> int:
        """The memory that this plan keeps beyond its arguments, so far."""
        return sum(getattr(plan, "scratch_bytes", 0) for plan in vars(self).values())

    def forward(
        self,
        x: np.ndarray,
        w: np.ndarray,
        b: np.ndarray | None,
        y: np.ndarray,
        relu_slope: float | None = None,
    ) -> None:
        """Set y to x·Wᵀ + b, then to y·relu_slope where y < 0, if given."""
        if self._dots is not None:
            self._dots.run(x, w, y, b, 1.0 if relu_slope is None else relu_slope)
            return
        if self._target is not None and not self.transposed:
            self._turned.run(x, w, y, b)
        else:
            if self._target is not None:
                self._plain.run(x, w, y)
            else:
                gemm(x, w, y, trans_b=not self.transposed)
            if b is not None:
                add_bias(y, b)
        if relu_slope is not None:
            apply_relu(y, relu_slope)

    def backward_data(self, dy: np.ndarray, w: np.ndarray, dx: np.ndarray) -> None:
        """Set dx to the gradient with respect to x."""
        if self._target is None:
            gemm(dy, w, dx, trans_b=self.transposed)
        elif self.transposed:
            self._turned.run(dy, w, dx)
        else:
            self._plain.run(dy, w, dx)

    def backward_weights(
        self, x: np.ndarray, dy: np.ndarray, dw: np.ndarray, add: bool = True
    ) -> None:
        """Add the gradient with respect to w to dw, or set dw to it."""
        left, right = (x, dy) if self.transposed else (dy, x)
        if self._target is None:
            gemm(left, right, dw, trans_a=True, beta=float(add))
        else:
            self._weights.run(left, right, dw, transposed=True, add=add)
