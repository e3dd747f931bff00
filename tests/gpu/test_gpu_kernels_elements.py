"""Kernels over elements, rows and labels against the CPU's: odd sizes, float16, many operands."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from pycaffe_dist.kernels import neurons
from pycaffe_dist.kernels.activation import (
    clipped_relu_backward,
    clipped_relu_forward,
    relu_forward,
)
from pycaffe_dist.kernels.columns import put_columns, take_columns
from pycaffe_dist.kernels.dropout import dropout
from pycaffe_dist.kernels.eltwise import (
    maximum,
    maximum_gradient,
    product,
    scaled_sum,
    sum_gradients,
    weighted_sum,
)
from pycaffe_dist.kernels.exponential import mish, mish_gradient, sigmoid
from pycaffe_dist.kernels.labels import (
    class_counts,
    class_numbers,
    first_wrong,
    label_hits,
    total_loss,
)
from pycaffe_dist.kernels.largest import largest
from pycaffe_dist.kernels.lstm import lstm_unit_backward, lstm_unit_forward
from pycaffe_dist.kernels.norms import sum_of_squares
from pycaffe_dist.kernels.reduction import MAGNITUDE, PLAIN, SQUARE, reduce_rows
from pycaffe_dist.kernels.scatter import gather, scatter_add

SIZE = 1031
DTYPES = np.float16, np.float32, np.float64
FUNCTIONS = [
    mish,
    mish_gradient,
    sigmoid,
    *[value for value in vars(neurons).values() if inspect.getmodule(value) is neurons],
]


def tolerance(dtype):
    return {np.float16: 4e-3, np.float32: 1e-5, np.float64: 1e-12}[dtype]


def compare(gpu, function, arrays, outputs, dtype=np.float32, settings=()):
    """Call a function with arrays of each device; compare the arrays ``outputs``.

    The CPU computes in float32 if the GPU has float16.
    """
    here = [a.astype(np.float32) if a.dtype == np.float16 else a.copy() for a in arrays]
    there = [gpu.to_device(a) for a in arrays]
    function(*here, *settings)
    function(*there, *settings)
    for place in outputs:
        found, expected = gpu.to_host(there[place]).astype(float), here[place].astype(float)
        bound = tolerance(dtype) * max(1, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=tolerance(dtype), atol=bound)


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
def test_neurons(dtype, on_gpu):
    for function in FUNCTIONS:
        names = inspect.signature(function).parameters
        settings = [1.5, 0.5, 3.0, 2.0][: sum(str(p.annotation) == "float" for p in names.values())]
        arrays = [normal(SIZE, dtype=dtype, seed=k) for k in range(len(names) - len(settings))]
        if function.__name__[:3] in ("log", "pow"):
            settings = [2.5, 0.5, 4.0]
        compare(on_gpu, function, arrays, [-1], dtype, settings)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("operands", [1, 2, 3, 4, 5, 9])
def test_eltwise(operands, dtype, on_gpu):
    values = [normal(SIZE, dtype=dtype, seed=k).round(1) for k in range(operands)]
    y, factors = np.empty(SIZE, dtype), [1.0, -2.0, 0.5, 1.0, 3.0, 1.0, 1.0, 2.0, -1.0][:operands]
    for end in ((factors,), (factors, 0.0), (factors, 0.5)):
        compare(on_gpu, lambda y, *v, e=end: weighted_sum(y, v, *e), [y, *values], [0], dtype)
    if operands > 1:
        compare(on_gpu, lambda y, *v: product(y, v), [y, *values], [0], dtype)
        winner = np.empty(SIZE, np.int32)
        compare(on_gpu, lambda y, w, *v: maximum(y, w, v), [y, winner, *values], [0, 1], dtype)
        compare(
            on_gpu,
            lambda dy, w, dx: maximum_gradient(dy, w, 1, dx),
            [values[0], np.arange(SIZE, dtype=np.int32) % 3, y],
            [2],
            dtype,
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("columns", [1, 7, 64])
def test_a_sum_with_scaled_rows(columns, dtype, on_gpu):
    factors, values = normal(13, dtype=dtype), [normal(13, columns, dtype=dtype)] * 3
    compare(on_gpu, scaled_sum, [factors, *values], [3], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
def test_clipped_relu(dtype, on_gpu):
    x = (normal(SIZE, dtype=dtype) * 4).round(1).astype(dtype)
    compare(on_gpu, clipped_relu_forward, [x, x], [1], dtype, (0.5, 6))
    compare(on_gpu, clipped_relu_backward, [x, x[::-1].copy(), x], [2], dtype, (0.5, 6))


FACTORS = [1.0], [1.0, 1.0], [2.0, -1.0, 1.0], [1.0, 3.0, 1.0, 2.0, 5.0]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("overwrites", [False, True])
@pytest.mark.parametrize(
    "factors", [[1.0], [1.0, 1.0], [2.0, -1.0, 1.0], [1.0, 3.0, 1.0, 2.0, 0.5]]
)
def test_gradients_of_a_sum(factors, overwrites, rectified, dtype, on_gpu):
    def call(dy, sign, *others):
        gradients = [dy, *others[1:]] if overwrites else others
        sum_gradients(dy, gradients, factors, *((sign, 0.5) if rectified else ()))

    dy, sign = normal(SIZE, dtype=dtype), normal(SIZE, dtype=dtype, seed=1).round(1)
    empty = [np.zeros(SIZE, dtype) for _ in factors]
    results = list(range(2 + overwrites, 2 + len(factors)))
    compare(on_gpu, call, [dy, sign, *empty], [0, *results], dtype)


def test_a_sum_that_overwrites_its_first_value(on_gpu):
    values = [on_gpu.to_device(normal(SIZE, seed=k)) for k in range(6)]
    expected = sum(on_gpu.to_host(value) for value in values)
    weighted_sum(values[0], values, [1.0] * 6)
    np.testing.assert_allclose(on_gpu.to_host(values[0]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("begin", range(5))
def test_arrays_that_begin_anywhere(begin, dtype, on_gpu):
    """Where 16 bytes are not aligned, elements are read one by one."""

    def call(x, y, z):
        relu_forward(x[begin:], y[2 * begin :][: len(x) - begin], 0.5)
        weighted_sum(z[begin:], [z[begin:], x[begin:]], [1.0, 2.0])

    x, y = normal(SIZE, dtype=dtype), np.zeros(2 * SIZE, dtype)
    compare(on_gpu, call, [x, y, normal(SIZE, dtype=dtype, seed=1)], [1, 2], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize(
    ("begin", "columns", "width"), [(3, 5, 11), (4, 8, 16), (0, 4, 4), (8, 16, 24), (8, 16, 25)]
)
def test_columns(begin, columns, width, dtype, on_gpu):
    part, whole = normal(7, columns, dtype=dtype), normal(7, width, dtype=dtype, seed=1)
    compare(on_gpu, lambda p, w: put_columns(p, w, begin), [part, whole], [1], dtype)
    compare(on_gpu, lambda w, p: take_columns(w, begin, p), [whole, part], [1], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
def test_dropout_drops_the_same_elements(dtype, on_gpu):
    x = np.ones(SIZE, dtype)
    for key, ratio in ((0, 0.5), (2**64 - 1, 0.1), (0x123456789ABCDEF0, 0.9)):
        arrays, settings = [x, x, np.array([key], np.uint64)], (ratio, 1 / (1 - ratio))
        compare(on_gpu, dropout, arrays, [1], dtype, settings)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
def test_lstm_unit(dtype, on_gpu):
    state, gates = (13, 9), (13, 36)
    keep = (np.arange(13) % 3 > 0).astype(dtype)
    old, c, h = (normal(*state, dtype=dtype, seed=k) for k in range(3))
    old[0] = np.nan  # of a sequence that starts
    inputs = old, normal(*gates, dtype=dtype), keep, normal(*gates, dtype=dtype), c, h
    compare(on_gpu, lstm_unit_forward, inputs, [3, 4, 5], dtype)
    c_old = normal(*state, dtype=dtype)
    arrays = c_old, np.abs(normal(*gates, dtype=dtype)), c, h, c, h, normal(*gates, dtype=dtype)
    compare(on_gpu, lstm_unit_backward, arrays, [5, 6], dtype)


@pytest.mark.parametrize("types", [(np.float16, np.float32), (np.float32,) * 2], ids=str)
def test_rows_of_a_table(types, on_gpu):
    data, parameter = types
    indices = np.random.default_rng(0).integers(0, 6, 700)
    indices[indices == 4] = 5  # a row that nobody wants
    table, rows = normal(7, 33, dtype=parameter), np.empty((700, 33), data)
    compare(on_gpu, gather, [table, indices, rows], [2], data)
    rows = normal(700, 33, dtype=data).round(2)
    compare(on_gpu, scatter_add, [rows, indices, table], [2], data)


def test_a_sum_of_rows_has_the_order_of_the_indices(on_gpu):
    rows, indices = normal(700, 5), np.random.default_rng(0).integers(0, 3, 700)
    here, there = np.zeros((3, 5), np.float32), on_gpu.zeros((3, 5), np.float32)
    scatter_add(rows, indices, here)
    scatter_add(on_gpu.to_device(rows), on_gpu.to_device(indices), there)
    np.testing.assert_array_equal(on_gpu.to_host(there), here)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("shape", [(3, 9001), (5, 1), (1, 300)], ids=str)
@pytest.mark.parametrize("what", [PLAIN, MAGNITUDE, SQUARE])
def test_sums_of_rows(what, shape, dtype, on_gpu):
    x, y = normal(*shape, dtype=dtype), np.empty(shape[0], dtype)
    factor = 1 / shape[1]
    compare(on_gpu, lambda x, y: reduce_rows(x, what, factor, y), [x, y], [1], dtype)


def test_sum_of_squares(on_gpu):
    values = np.random.default_rng(0).normal(size=(3, 7001)).astype(np.float32)
    found = sum_of_squares(on_gpu.to_device(values))
    assert found == pytest.approx(sum_of_squares(values), rel=1e-5)


def test_labels(on_gpu):
    values = np.array([[0, 2, 1.7, -0.5], [3, 2, 2, 0]], np.float32)
    numbers, counted = np.empty(values.shape, np.int64), np.empty(values.shape, bool)
    wrong = np.zeros(1, np.uint64)
    for bad, whole, expected in (
        ({}, False, None),
        ({}, True, (2, np.float32(1.7))),
        ({5: 4, 6: 9, 7: -1}, False, (6, 9.0)),
        ({3: -1, 6: 1e30}, False, (3, -1.0)),
    ):
        labels = values.copy()
        labels.reshape(-1)[list(bad)] = list(bad.values())
        arrays = [on_gpu.to_device(a) for a in (labels, numbers, counted, wrong)]
        class_numbers(arrays[0], 4, 4, whole, *arrays[1:])
        class_numbers(labels, 4, 4, whole, numbers, counted, wrong)
        for found, here in zip(arrays[1:], (numbers, counted, wrong)):
            np.testing.assert_array_equal(on_gpu.to_host(found), here)
        assert first_wrong(wrong) == expected


@pytest.mark.parametrize("bad", [None, (2, 1)])
@pytest.mark.parametrize("divisor", [0, 0.25, 12])
def test_total_of_a_loss(divisor, bad, on_gpu):
    labels = np.arange(900, dtype=np.float32).reshape(300, 3)
    at = np.full(300, -1)
    if bad is not None:
        at[bad[0]], at[7] = bad[1], 0
    arrays = [normal(300, dtype=float), np.arange(300) % 4, at, labels, np.empty(2)]
    arrays.append(np.empty(1, np.uint64))
    compare(
        on_gpu,
        lambda *a: total_loss(*a[:4], divisor, *a[4:]),
        arrays,
        [4, 5],
    )


@pytest.mark.parametrize("shape", [(70, 300, 1), (3, 5, 50)], ids=str)
def test_hits_and_counts_of_classes(shape, on_gpu):
    outer, classes, inner = shape
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 20, shape).astype(np.float32)
    numbers, counted = rng.integers(0, classes, (outer, inner)), rng.random((outer, inner)) < 0.8
    hits, counts = np.empty((outer, inner), bool), np.empty(classes, np.int64)
    top_k = classes // 2
    compare(
        on_gpu,
        lambda s, n, c, h: label_hits(s, n, c, top_k, h),
        [scores, numbers, counted, hits],
        [3],
    )
    compare(on_gpu, class_counts, [numbers, counted, counts], [2])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize(("shape", "count"), [((5, 7, 1), 7), ((2, 1000, 3), 5), ((3, 1, 2), 1)])
def test_the_indices_of_the_largest(shape, count, dtype, on_gpu):
    rng = np.random.default_rng(1)
    x = rng.integers(-2, 3, shape).astype(dtype)  # most have equals
    few = shape[1] // 2
    x[0, :few, 0] = np.resize([np.nan, -np.inf, np.inf, -0.0], few)
    found, expected = (np.empty((shape[0], count, shape[2]), np.int64) for _ in range(2))
    there = on_gpu.to_device(found)
    largest(x.copy(), expected)
    largest(on_gpu.to_device(x), there)
    np.testing.assert_array_equal(on_gpu.to_host(there), expected)
    pairs = sorted((-x[1, c, 0], -c) for c in range(shape[1]))[:count]
    assert expected[1, :, 0].tolist() == [-c for _, c in pairs]
