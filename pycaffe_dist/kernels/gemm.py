"""Matrix products: C = alpha·op(A)·op(B) + beta·C."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from pycaffe_dist.kernels import dry_run, kernel, plan
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.jit.codegen.target import Target, target
from pycaffe_dist.kernels.jit.gemm.products import FlatProduct, TransposedProduct
from pycaffe_dist.threads import parallel_for

# A block of B (K_BLOCK × N_BLOCK floats, 256 KB) stays in the second-level cache while the rows
# of A pass over it.
K_BLOCK = 128
N_BLOCK = 512
FLOPS_PER_CHUNK = 1 << 20


@jit(fast=True)
def _scale(row, beta):
    if beta == 0:
        row[:] = 0
    elif beta != 1:
        for j in range(row.size):
            row[j] *= beta


@jit(fast=True)
def _two_rows(a, b, c, i, k0, k1, j0, j1, alpha):
    """c[i:i+2, j0:j1] += alpha · a[i:i+2, k0:k1] · b[k0:k1, j0:j1], four steps of k at a time."""
    c0, c1 = c[i, j0:j1], c[i + 1, j0:j1]
    k = k0
    while k + 4 <= k1:
        b0, b1, b2, b3 = b[k, j0:j1], b[k + 1, j0:j1], b[k + 2, j0:j1], b[k + 3, j0:j1]
        p0, p1, p2, p3 = (
            alpha * a[i, k],
            alpha * a[i, k + 1],
            alpha * a[i, k + 2],
            alpha * a[i, k + 3],
        )
        q0, q1, q2, q3 = (
            alpha * a[i + 1, k],
            alpha * a[i + 1, k + 1],
            alpha * a[i + 1, k + 2],
            alpha * a[i + 1, k + 3],
        )
        for j in range(j1 - j0):
            c0[j] += p0 * b0[j] + p1 * b1[j] + p2 * b2[j] + p3 * b3[j]
            c1[j] += q0 * b0[j] + q1 * b1[j] + q2 * b2[j] + q3 * b3[j]
        k += 4
    while k < k1:
        b0 = b[k, j0:j1]
        p0, q0 = alpha * a[i, k], alpha * a[i + 1, k]
        for j in range(j1 - j0):
            c0[j] += p0 * b0[j]
            c1[j] += q0 * b0[j]
        k += 1


@jit(fast=True)
def _one_row(a, b, c, i, k0, k1, j0, j1, alpha):
    """c[i, j0:j1] += alpha · a[i, k0:k1] · b[k0:k1, j0:j1] with the sums of `_two_rows`."""
    c0 = c[i, j0:j1]
    k = k0
    while k + 4 <= k1:
        b0, b1, b2, b3 = b[k, j0:j1], b[k + 1, j0:j1], b[k + 2, j0:j1], b[k + 3, j0:j1]
        p0, p1, p2, p3 = (
            alpha * a[i, k],
            alpha * a[i, k + 1],
            alpha * a[i, k + 2],
            alpha * a[i, k + 3],
        )
        for j in range(j1 - j0):
            c0[j] += p0 * b0[j] + p1 * b1[j] + p2 * b2[j] + p3 * b3[j]
        k += 4
    while k < k1:
        b0 = b[k, j0:j1]
        p0 = alpha * a[i, k]
        for j in range(j1 - j0):
            c0[j] += p0 * b0[j]
        k += 1


@jit
def add_product(a, b, c, alpha) -> None:
    """c += alpha · a·b for a (M, K), b (K, N) C-contiguous, c (M, N) C-contiguous; one thread."""
    m, k, n = c.shape[0], b.shape[0], c.shape[1]
    for j0 in range(0, n, N_BLOCK):
        j1 = min(n, j0 + N_BLOCK)
        for k0 in range(0, k, K_BLOCK):
            k1 = min(k, k0 + K_BLOCK)
            for i in range(0, m - 1, 2):
                _two_rows(a, b, c, i, k0, k1, j0, j1, alpha)
            if m % 2:
                _one_row(a, b, c, m - 1, k0, k1, j0, j1, alpha)


@jit
def _row_pairs(begin, end, a, b, c, alpha, beta):
    rows = slice(2 * begin, min(2 * end, c.shape[0]))
    for i in range(rows.start, rows.stop):
        _scale(c[i], beta)
    add_product(a[rows], b, c[rows], alpha)


@kernel
def gemm(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> None:
    """Compute ``c = alpha·op(a)·op(b) + beta·c`` in place.

    op(a) is (M, K), op(b) is (K, N), c is (M, N), all C-contiguous and of one dtype; ``beta=0``
    does not read c.  The result does not depend on the number of threads.
    """
    unit = target() if c.dtype == np.float32 else None
    if unit is not None:
        _specialised(unit, a, b, c, trans_a, trans_b, alpha, beta)
        return
    # Copies of transposed operands cost far less than the product and spare variants to compile.
    left = np.ascontiguousarray(a.T) if trans_a else a
    right = np.ascontiguousarray(b.T) if trans_b else b
    m, n = c.shape
    scalar = c.dtype.type
    flops_per_pair = max(1, 4 * n * left.shape[1])
    parallel_for(
        _row_pairs,
        (m + 1) // 2,
        left,
        right,
        c,
        scalar(alpha),
        scalar(beta),
        grain=max(1, FLOPS_PER_CHUNK // flops_per_pair),
    )


@dry_run.cached(maxsize=64)
def _plan(turned: bool, unit: Target, m: int, n: int, k: int, thread: int) -> Any:
    # Plans have scratch memory, so every calling thread has plans of its own.
    kind = TransposedProduct if turned else FlatProduct
    return kind(unit, m, n, k)


def _specialised(unit, a, b, c, trans_a, trans_b, alpha, beta) -> None:
    if beta not in (0, 1):
        c *= c.dtype.type(beta)
    (m, n), k = c.shape, b.shape[1 if trans_b else 0]
    plan = _plan(bool(trans_b), unit, m, n, k, threading.get_ident())
    if trans_b:
        left = np.ascontiguousarray(a.T) if trans_a else a
        plan.run(left, b, c, add=beta != 0, scale=alpha)
    else:
        plan.run(a, b, c, transposed=trans_a, add=beta != 0, scale=alpha)


@plan
class FixedProduct:
    """Products of many matrices (M, K) with one (K, N), which is rearranged once beforehand.

    `hold` it first.  All are C-contiguous and of ``dtype``.
    """

    def __init__(self, m: int, n: int, k: int, dtype: Any = np.float32):
        unit = target() if np.dtype(dtype) == np.float32 else None
        self._product = FlatProduct(unit, m, n, k) if unit is not None else None
        self._b: np.ndarray | None = None

    def hold(self, b: np.ndarray, transposed: bool = False) -> None:
        """Take b (K, N), or (N, K) if ``transposed``; call it again when b has changed."""
        if self._product is not None:
            self._product.lay_out(b, transposed)
        else:
            self._b = np.ascontiguousarray(b.T) if transposed else b

    def run(self, a: np.ndarray, y: np.ndarray, add: bool = False) -> None:
        """Set y (M, N) to a·b; with ``add``, add it to y."""
        if self._product is not None:
            self._product.run(a, None, y, add=add)
        else:
            assert self._b is not None
            gemm(a, self._b, y, beta=float(add))
