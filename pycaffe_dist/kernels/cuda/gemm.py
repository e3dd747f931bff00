"""Matrix products on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist import device


def gemm(
    a: Any,
    b: Any,
    c: Any,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> None:
    """See `pycaffe_dist.kernels.gemm.gemm`."""
    gpu = device.current_gpu()
    gpu.gemm(a, b, c, trans_a, trans_b, alpha, beta, gpu.tf32_products)


def convolution_gemm(
    a: Any, b: Any, c: Any, trans_a: bool = False, trans_b: bool = False, beta: float = 0.0
) -> None:
    """Compute a product as `gemm` does, with the precision of convolutions."""
    gpu = device.current_gpu()
    gpu.gemm(a, b, c, trans_a, trans_b, 1.0, beta, gpu.tf32_convolutions)


class FixedProduct:
    """See `pycaffe_dist.kernels.gemm.FixedProduct`; cuBLAS uses the matrix in place."""

    def __init__(self, m: int, n: int, k: int, dtype: Any = np.float32):
        self._b: Any = None
        self._transposed = False

    def hold(self, b: Any, transposed: bool = False) -> None:
        """Take b (K, N), or (N, K) if ``transposed``; call it again when b has changed."""
        self._b, self._transposed = b, transposed

    def run(self, a: Any, y: Any, add: bool = False) -> None:
        """Set y (M, N) to a·b; with ``add``, add it to y."""
        gemm(a, self._b, y, trans_b=self._transposed, beta=float(add))
