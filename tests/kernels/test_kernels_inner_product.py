"""Matrix and inner products against NumPy in float64 and Caffe's own outputs."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_reference import close, golden

from pycaffe_dist.kernels.gemm import FixedProduct, gemm
from pycaffe_dist.kernels.inner_product import InnerProduct
from pycaffe_dist.threads import set_threads

pytestmark = pytest.mark.usefixtures("two_threads")


SHAPES = [
    (1, 1, 1),
    (4, 7, 30),
    (64, 10, 500),
    (3, 130, 65),
    (17, 33, 1),
    (130, 31, 600),
    (5, 4, 9),
]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_gemm(m, n, k, trans_a, trans_b, dtype):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((k, m) if trans_a else (m, k)).astype(dtype)
    b = rng.standard_normal((n, k) if trans_b else (k, n)).astype(dtype)
    product = (a.T if trans_a else a).astype(np.float64) @ (b.T if trans_b else b)
    c = np.full((m, n), np.nan, dtype)
    gemm(a, b, c, trans_a, trans_b)
    close(c, product, dtype, k)
    c[:] = 1
    gemm(a, b, c, trans_a, trans_b, alpha=0.5, beta=2.0)
    close(c, 0.5 * product + 2, dtype, k)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_fixed_product_uses_the_matrix_that_it_held_last(m, n, k, transposed, dtype):
    rng = np.random.default_rng(0)
    product = FixedProduct(m, n, k, dtype)
    for _ in range(2):
        b = rng.standard_normal((k, n)).astype(dtype)
        product.hold(np.ascontiguousarray(b.T) if transposed else b, transposed)
        y, expected = np.full((m, n), np.nan, dtype), np.zeros((m, n))
        for add in (False, True):
            a = rng.standard_normal((m, k)).astype(dtype)
            product.run(a, y, add)
            expected += a.astype(np.float64) @ b.astype(np.float64)
            close(y, expected, dtype, k)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_inner_product(m, n, k, transposed, bias, dtype):
    rng = np.random.default_rng(0)
    x, w, b, dy = (
        rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (n, k), (n,), (m, n))
    )
    stored = np.ascontiguousarray(w.T) if transposed else w
    y, dx, dw = np.full_like(dy, np.nan), np.full_like(x, np.nan), np.ones_like(stored)
    plan = InnerProduct(m, n, k, transposed, dtype)
    plan.forward(x, stored, b if bias else None, y)
    plan.backward_data(dy, stored, dx)
    plan.backward_weights(x, dy, dw)
    x, w, b, dy = (array.astype(np.float64) for array in (x, w, b, dy))
    close(y, x @ w.T + (b if bias else 0), dtype, k)
    close(dx, dy @ w, dtype, n)
    close(dw.T if transposed else dw, 1 + dy.T @ x, dtype, m)


def test_inner_product_matches_caffe():
    file = golden("ip")
    x, w, b = file["blob/x"].reshape(4, -1), file["param/l/0"], file["param/l/1"]
    dy = file["topdiff/y"]
    y, dx, dw = np.empty_like(dy), np.empty_like(x), np.zeros_like(w)
    plan = InnerProduct(4, 7, 30)
    plan.forward(x, w, b, y)
    plan.backward_data(dy, w, dx)
    plan.backward_weights(x, dy, dw)
    for found, key in ((y, "blob/y"), (dx, "bottomdiff/x"), (dw, "paramdiff/l/0")):
        expected = file[key].reshape(found.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_results_do_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(0)
    m, n, k = 70, 200, 301
    x, w, dy = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k), (m, n)))
    results = []
    for count in (1, 2, 3):
        set_threads(count)
        plan = InnerProduct(m, n, k)
        y, dx, dw, c = np.empty_like(dy), np.empty_like(x), np.ones_like(w), np.empty_like(dy)
        plan.forward(x, w, None, y)
        plan.backward_data(dy, w, dx)
        plan.backward_weights(x, dy, dw)
        gemm(x, w, c, trans_b=True)
        results.append((y, dx, dw, c))
    for other in results[1:]:
        for found, expected in zip(other, results[0]):
            np.testing.assert_array_equal(found, expected)


def test_a_nan_reaches_the_products_of_its_row(dtype):
    x, w = np.ones((5, 40), dtype), np.zeros((9, 40), dtype)
    x[2, 39] = np.nan
    y = np.zeros((5, 9), dtype)
    InnerProduct(5, 9, 40, dtype=dtype).forward(x, w, None, y)
    assert np.isnan(y[2]).all()
    assert np.isfinite(np.delete(y, 2, 0)).all()
