"""Inner products (fully connected layers): y = x·Wᵀ + b and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.kernels.convolution import add_bias
from pycaffe_dist.kernels.gemm import gemm


class InnerProduct:
    """The plan of one inner product of M samples, N outputs and K inputs.

    x is (M, K), w is (N, K), or (K, N) if ``transposed``, b has N elements, y is (M, N); all
    C-contiguous and of ``dtype``.
    """

    def __init__(self, m: int, n: int, k: int, transposed: bool = False, dtype: Any = np.float32):
        self.shape = (m, n, k)
        self.transposed = transposed

    def forward(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None, y: np.ndarray) -> None:
        """Set y to x·Wᵀ + b."""
        gemm(x, w, y, trans_b=not self.transposed)
        if b is not None:
            add_bias(y, b)

    def backward_data(self, dy: np.ndarray, w: np.ndarray, dx: np.ndarray) -> None:
        """Set dx to the gradient with respect to x."""
        gemm(dy, w, dx, trans_b=self.transposed)

    def backward_weights(self, x: np.ndarray, dy: np.ndarray, dw: np.ndarray) -> None:
        """Add the gradient with respect to w to dw."""
        if self.transposed:
            gemm(x, dy, dw, trans_a=True, beta=1.0)
        else:
            gemm(dy, x, dw, trans_a=True, beta=1.0)
