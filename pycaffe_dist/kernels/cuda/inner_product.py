"""Inner products on a GPU: matrix products of cuBLAS."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.kernels.cuda.bias_add import add_bias, finish
from pycaffe_dist.kernels.cuda.casting import cast
from pycaffe_dist.kernels.cuda.gemm import gemm


class InnerProduct:
    """See `pycaffe_dist.kernels.inner_product.InnerProduct`.

    Where x, y and their gradients have 16 bits, parameters are float32.
    """

    scratch_bytes = 0

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
        self.transposed = transposed

    def forward(
        self, x: Any, w: Any, b: Any | None, y: Any, relu_slope: float | None = None
    ) -> None:
        """Set y to x·Wᵀ + b, then to y·relu_slope where y < 0, if given."""
        gemm(x, like(w, x), y, trans_b=not self.transposed)
        if relu_slope is not None:
            finish(y, b, relu_slope)
        elif b is not None:
            add_bias(y, b)

    def backward_data(self, dy: Any, w: Any, dx: Any) -> None:
        """Set dx to the gradient with respect to x."""
        gemm(dy, like(w, dy), dx, trans_b=self.transposed)

    def backward_weights(self, x: Any, dy: Any, dw: Any, add: bool = True) -> None:
        """Add the gradient with respect to w to dw, or set dw to it."""
        left, right = (x, dy) if self.transposed else (dy, x)
        gemm(left, right, dw, trans_a=True, beta=float(add))


def like(w: Any, x: Any) -> Any:
    """Return parameters with the dtype of x: a copy if data has 16 bits."""
    if w.dtype == x.dtype:
        return w
    copy = device.xp().empty(w.shape, x.dtype)
    cast(w, copy)
    return copy
