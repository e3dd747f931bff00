"""Convolution kernels against a slow float64 reference and Caffe's own outputs."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_reference import (
    WINOGRAD_LOSS,
    close,
    convolution,
    convolution_backward,
    golden,
)

from pycaffe_dist.errors import NetError
from pycaffe_dist.kernels.convolution import (
    Convolution,
    ConvolutionGeometry,
    add_bias,
    bias_gradient,
)
from pycaffe_dist.kernels.im2col import Im2colPlan, col2im, im2col
from pycaffe_dist.kernels.jit.codegen.target import target
from pycaffe_dist.kernels.jit.winograd.costs import best_phase_tile, best_tile
from pycaffe_dist.threads import set_threads

pytestmark = pytest.mark.usefixtures("two_threads")


def geometry(axes, kernel, stride=1, pad=0, dilation=1, group=1):
    def spread(value):
        return value if isinstance(value, tuple) else (value,) * axes

    return ConvolutionGeometry(*map(spread, (kernel, stride, pad, dilation)), group)


# name: x shape, outputs, geometry
CASES = {
    "plain 3x3": ((2, 3, 6, 5), 4, geometry(2, 3)),
    "5x5 padded": ((3, 4, 9, 11), 6, geometry(2, 5, pad=2)),
    "lenet 1": ((3, 1, 28, 28), 20, geometry(2, 5)),
    "lenet 2": ((2, 20, 12, 12), 50, geometry(2, 5)),
    "first layer 11x11": ((2, 3, 35, 35), 8, geometry(2, 11, stride=4)),
    "few taps, strided": ((2, 3, 30, 29), 37, geometry(2, 3, stride=2, pad=1)),
    "few taps, wide": ((1, 3, 9, 131), 33, geometry(2, 3, pad=1)),
    "7x7 stride 2": ((2, 3, 30, 29), 18, geometry(2, 7, stride=2, pad=3)),
    "1x1": ((3, 5, 4, 4), 7, geometry(2, 1)),
    "1x1 wide": ((2, 70, 9, 7), 33, geometry(2, 1)),
    "1x1 narrow": ((7, 37, 7, 7), 50, geometry(2, 1)),
    "1x1 narrow, stride 2": ((5, 40, 9, 13), 130, geometry(2, 1, stride=2)),
    "1x1 of few pixels": ((13, 150, 1, 3), 20, geometry(2, 1)),
    "1x1 of many sums": ((2, 300, 17, 16), 260, geometry(2, 1)),
    "1x1 many outputs": ((3, 9, 20, 30), 140, geometry(2, 1)),
    "1x1 stride 2": ((2, 17, 9, 8), 19, geometry(2, 1, stride=2)),
    "1x1 strided, grouped": ((3, 8, 10, 8), 6, geometry(2, 1, stride=(3, 2), group=2)),
    "1x1 padded": ((2, 5, 4, 3), 6, geometry(2, 1, pad=1)),
    "stride beyond kernel": ((2, 9, 14, 13), 10, geometry(2, 2, stride=3)),
    "dilated": ((2, 6, 17, 15), 9, geometry(2, 3, pad=2, dilation=2)),
    "dilated and strided": ((2, 6, 19, 16), 9, geometry(2, 3, stride=2, pad=3, dilation=3)),
    "pad beyond half": ((2, 5, 6, 7), 9, geometry(2, 3, pad=2)),
    "pad beyond kernel": ((2, 3, 4, 5), 5, geometry(2, 3, pad=4)),
    "rectangular": ((2, 3, 8, 9), 5, geometry(2, (1, 5), stride=(2, 1), pad=(0, 2))),
    "rectangular tall": ((1, 9, 16, 3), 17, geometry(2, (5, 2), stride=(1, 2), pad=(3, 1))),
    "grouped": ((2, 4, 9, 7), 6, geometry(2, 3, stride=2, pad=1, group=2)),
    "grouped wide": ((2, 48, 13, 13), 40, geometry(2, 5, pad=2, group=2)),
    "grouped 1x1": ((2, 12, 5, 6), 9, geometry(2, 1, group=3)),
    "depthwise": ((2, 19, 10, 9), 19, geometry(2, 3, pad=1, group=19)),
    "depthwise strided": ((2, 19, 10, 9), 19, geometry(2, 3, stride=2, pad=1, group=19)),
    "depthwise wide": ((2, 3, 7, 43), 3, geometry(2, 3, pad=1, group=3)),
    "depthwise wide strided": ((2, 3, 9, 78), 3, geometry(2, 3, stride=2, pad=1, group=3)),
    "depthwise 5x5": ((1, 4, 12, 27), 4, geometry(2, 5, pad=3, dilation=2, group=4)),
    "depthwise by 3": ((2, 4, 9, 10), 4, geometry(2, 3, stride=3, pad=1, group=4)),
    "depthwise 1-D": ((2, 5, 21), 5, geometry(1, 4, stride=2, pad=2, group=5)),
    "depthwise times two": ((2, 6, 7, 9), 12, geometry(2, 3, pad=1, group=6)),
    "single pixel": ((2, 30, 1, 1), 20, geometry(2, 1)),
    "kernel is image": ((3, 6, 5, 5), 33, geometry(2, 5)),
    "batch 1": ((1, 16, 27, 27), 24, geometry(2, 5, pad=2)),
    "wide rows": ((1, 3, 4, 150), 13, geometry(2, 3, pad=1)),
    "many outputs": ((1, 12, 8, 8), 131, geometry(2, 3, pad=1)),
    "1-D": ((2, 3, 20), 4, geometry(1, 3, pad=1)),
    "1-D strided": ((2, 10, 31), 9, geometry(1, 5, stride=3, pad=2, dilation=2)),
    "3-D": ((2, 3, 5, 6, 7), 4, geometry(3, (2, 3, 3), stride=(1, 2, 1), pad=1)),
    "4-D": ((1, 2, 3, 4, 3, 4), 3, geometry(4, 2)),
}


def random_case(seed):
    """Return a random 2-D case: x shape, outputs, geometry."""
    rng = np.random.default_rng(seed)
    while True:
        group = int(rng.choice([1, 1, 1, 2, 3]))
        kernel, stride, pad, dilation = (
            tuple(map(int, rng.integers(low, high, 2)))
            for low, high in ((1, 6), (1, 4), (0, 4), (1, 3))
        )
        shape = (
            int(rng.integers(1, 4)),
            group * int(rng.integers(1, 20)),
            *map(int, rng.integers(3, 34, 2)),
        )
        case = ConvolutionGeometry(kernel, stride, pad, dilation, group)
        try:
            case.output_shape(shape[2:])
        except NetError:
            continue
        return shape, group * int(rng.integers(1, 30)), case


def arrays(x_shape, outputs, case, dtype, seed=0):
    rng = np.random.default_rng(seed)
    w_shape = (outputs, x_shape[1] // case.group, *case.kernel)
    y_shape = (x_shape[0], outputs, *case.output_shape(x_shape[2:]))
    return [rng.standard_normal(s).astype(dtype) for s in (x_shape, w_shape, (outputs,), y_shape)]


def check(x_shape, outputs, case, dtype):
    x, w, b, dy = arrays(x_shape, outputs, case, dtype)
    plan = Convolution(x.shape, w.shape, case, dtype)
    y, dx = np.full(dy.shape, np.nan, dtype), np.full(x.shape, np.nan, dtype)
    dw = np.ones(w.shape, dtype)
    plan.forward(x, w, b, y)
    plan.backward_data(dy, w, dx)
    plan.backward_weights(x, dy, dw)
    bias = b.astype(np.float64).reshape(1, -1, *[1] * (x.ndim - 2))
    expected_dx, expected_dw = convolution_backward(x, w, dy, case)
    pairs = (y, convolution(x, w, case) + bias), (dx, expected_dx), (dw, 1 + expected_dw)
    terms = w[0].size, w[0].size * w.shape[0] // w.shape[1], dy.size // dy.shape[1]
    for (found, expected), count, direction in zip(pairs, terms, ("forward", "data", "weights")):
        shapes = target(), x.shape, w.shape, case, direction
        is_filtered = plan.generic_reason is None
        tile = is_filtered and (best_tile(*shapes) or best_phase_tile(*shapes))
        loss = WINOGRAD_LOSS[tile] if tile else 1
        close(found, expected, dtype, count, loss)


@pytest.mark.parametrize("name", CASES)
def test_convolution_matches_the_reference(name, dtype):
    check(*CASES[name], dtype)


@pytest.mark.parametrize("seed", range(24))
def test_random_convolutions_match_the_reference(seed):
    check(*random_case(seed), np.float32)


def test_kernel_rows_that_are_too_wide_for_machine_code_give_a_reason():
    case = geometry(2, (2, 19), pad=(0, 9))
    plan = Convolution((1, 2, 5, 30), (3, 2, 2, 19), case)
    assert "16 columns" in plan.generic_reason
    check((1, 2, 5, 30), 3, case, np.float32)


@pytest.mark.parametrize("name", [n for n in CASES if n != "depthwise by 3"])
def test_usual_convolutions_run_on_machine_code(name):
    x_shape, outputs, case = CASES[name]
    w_shape = (outputs, x_shape[1] // case.group, *case.kernel)
    assert Convolution(x_shape, w_shape, case).generic_reason is None


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("conv_11x11_s4", geometry(2, 11, stride=4)),
        ("conv_1d_axis", geometry(1, 3, pad=1)),
        ("conv_1x1", geometry(2, 1)),
        ("conv_3x3", geometry(2, 3)),
        ("conv_5x5_pad2", geometry(2, 5, pad=2)),
        ("conv_hw_nobias", geometry(2, (1, 5), stride=(2, 1), pad=(0, 2))),
        ("conv_stride_group", geometry(2, 3, stride=2, pad=1, group=2)),
    ],
)
def test_convolution_matches_caffe(name, case):
    file = golden(name)
    x, w, dy = file["blob/x"], file["param/l/0"], file["topdiff/y"]
    plan = Convolution(x.shape, w.shape, case, x.dtype)
    y, dx, dw = np.empty_like(dy), np.empty_like(x), np.zeros_like(w)
    plan.forward(x, w, file.get("param/l/1"), y)
    plan.backward_data(dy, w, dx)
    plan.backward_weights(x, dy, dw)
    for found, key in ((y, "blob/y"), (dx, "bottomdiff/x"), (dw, "paramdiff/l/0")):
        np.testing.assert_allclose(found, file[key], rtol=1e-4, atol=1e-4)
    if "paramdiff/l/1" in file:
        db = np.zeros_like(file["paramdiff/l/1"])
        bias_gradient(dy, db)
        np.testing.assert_allclose(db, file["paramdiff/l/1"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("deconv_basic", geometry(2, 3, stride=2)),
        ("deconv_group_pad", geometry(2, 4, stride=2, pad=1, group=4)),
    ],
)
def test_swapped_directions_give_caffes_deconvolution(name, case):
    file = golden(name)
    x, w, dy = file["blob/x"], file["param/l/0"], file["topdiff/y"]
    plan = Convolution(dy.shape, w.shape, case, x.dtype)
    y, dx, dw = np.empty_like(dy), np.empty_like(x), np.zeros_like(w)
    plan.backward_data(x, w, y)
    if "param/l/1" in file:
        add_bias(y, file["param/l/1"])
    plan.forward(dy, w, None, dx)
    plan.backward_weights(dy, x, dw)
    for found, key in ((y, "blob/y"), (dx, "bottomdiff/x"), (dw, "paramdiff/l/0")):
        np.testing.assert_allclose(found, file[key], rtol=1e-4, atol=1e-4)


def test_im2col_matches_caffe():
    file = golden("im2col")
    x, dy = file["blob/x"], file["topdiff/y"]
    plan = Im2colPlan(x.shape[2:], geometry(2, 3, stride=2, pad=1))
    columns, dx = np.full_like(dy, np.nan), np.full_like(x, np.nan)
    im2col(x, columns, plan)
    col2im(dy, dx, plan)
    np.testing.assert_array_equal(columns, file["blob/y"])
    np.testing.assert_allclose(dx, file["bottomdiff/x"], rtol=1e-5)


def test_bias_and_its_gradient_for_vectors_and_images():
    rng = np.random.default_rng(1)
    for shape in ((5, 7), (5, 7, 3, 4), (2, 3, 1, 1)):
        y, b = rng.standard_normal(shape), rng.standard_normal(shape[1])
        shaped = b.reshape(1, -1, *[1] * (len(shape) - 2))
        out, db = y.copy(), np.ones(shape[1])
        add_bias(out, b)
        bias_gradient(y, db)
        np.testing.assert_allclose(out, y + shaped)
        np.testing.assert_allclose(db, 1 + y.reshape(*shape[:2], -1).sum((0, 2)))


@pytest.mark.parametrize("name", ["5x5 padded", "1x1 wide", "grouped", "3-D", "depthwise"])
def test_relu_is_applied_on_request_and_keeps_nan(name, dtype):
    x_shape, outputs, case = CASES[name]
    x, w, b, _ = arrays(x_shape, outputs, case, dtype)
    x[0, 0].flat[0] = np.nan
    plan = Convolution(x.shape, w.shape, case, dtype)
    plain, leaky = np.empty(plan.y_shape, dtype), np.empty(plan.y_shape, dtype)
    plan.forward(x, w, b, plain)
    assert np.isnan(plain).any()
    for slope in (0.0, 0.25):
        plan.forward(x, w, b, leaky, relu_slope=slope)
        np.testing.assert_array_equal(leaky, np.where(plain < 0, dtype(slope) * plain, plain))


@pytest.mark.parametrize("name", ["5x5 padded", "1x1 wide", "grouped", "lenet 2", "7x7 stride 2"])
def test_results_do_not_depend_on_the_number_of_threads(name):
    x_shape, outputs, case = CASES[name]
    x, w, b, dy = arrays(x_shape, outputs, case, np.float32)
    results = []
    for n in (1, 2, 3):
        set_threads(n)
        plan = Convolution(x.shape, w.shape, case)
        y, dx, dw = np.empty_like(dy), np.empty_like(x), np.ones_like(w)
        plan.forward(x, w, b, y)
        plan.backward_data(dy, w, dx)
        plan.backward_weights(x, dy, dw)
        results.append((y, dx, dw))
    for other in results[1:]:
        for found, expected in zip(other, results[0]):
            np.testing.assert_array_equal(found, expected)


def test_a_kernel_that_does_not_fit_is_refused():
    with pytest.raises(NetError, match=r"kernel \(5, 5\).*does not fit an image of \(4, 9\)"):
        geometry(2, 5).output_shape((4, 9))
