"""Matrix products on a GPU."""

from __future__ import annotations

from typing import Any

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
    device.current_gpu().gemm(a, b, c, trans_a, trans_b, alpha, beta)
