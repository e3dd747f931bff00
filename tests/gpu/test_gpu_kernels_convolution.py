"""Convolutions, inner products and columns on a GPU against those on the CPU."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pycaffe_dist import device
from pycaffe_dist.device import HOST
from pycaffe_dist.kernels.bias_add import add_bias, bias_gradient, rectified_bias_gradient
from pycaffe_dist.kernels.convolution import Convolution, ConvolutionGeometry
from pycaffe_dist.kernels.cuda import convolution as on_device
from pycaffe_dist.kernels.inner_product import InnerProduct

# x, w, stride, pad, dilation, groups.
SHAPES = {
    "small images side by side": ((3, 5, 7, 6), (4, 5, 3, 2), (2, 1), (1, 0), (1, 2), 1),
    "large images apart": ((2, 2, 19, 18), (3, 2, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "groups": ((3, 6, 5, 5), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    "groups, pointwise": ((2, 4, 5, 3), (6, 2, 1, 1), (1, 1), (0, 0), (1, 1), 2),
    "pointwise": ((3, 4, 5, 3), (3, 4, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "pointwise on few pixels": ((3, 20, 2, 1), (20, 20, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "pointwise with a stride": ((2, 3, 7, 7), (5, 3, 1, 1), (3, 2), (0, 0), (1, 1), 1),
    "as large as the image": ((4, 3, 3, 2), (5, 3, 3, 2), (1, 1), (0, 0), (1, 1), 1),
    "depthwise": ((3, 5, 9, 8), (5, 1, 3, 3), (2, 2), (1, 1), (1, 1), 5),
    "depthwise, two each": ((2, 3, 6, 7), (6, 1, 2, 3), (1, 1), (1, 2), (2, 1), 3),
    "depthwise, too many each": ((2, 2, 6, 6), (120, 1, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    "one axis": ((2, 3, 11), (4, 3, 4), (2,), (1,), (1,), 1),
    "three axes": ((2, 2, 4, 5, 6), (3, 2, 2, 3, 2), (1, 2, 1), (0, 1, 1), (1, 1, 2), 1),
    "three axes, depthwise": ((2, 2, 4, 5, 4), (2, 1, 2, 3, 2), (1, 2, 1), (0, 1, 1), (1, 1, 1), 2),
    "a gap between windows": ((2, 2, 9, 8), (3, 2, 2, 2), (3, 4), (0, 0), (1, 1), 1),
}
# Tolerances by the type of x; the reference is computed in float64.
PRECISION = {np.float64: 1e-12, np.float32: 2e-5, np.float16: 1e-2}


def compute(here, case, dtype, arrays):
    """Run all directions on a device; parameters are float32 where data is float16."""
    x_shape, w_shape, stride, pad, dilation, group = case
    geometry = ConvolutionGeometry(w_shape[2:], stride, pad, dilation, group)
    wide = np.float32 if dtype == np.float16 else dtype
    with device.use(here):
        to = device.xp().asarray
        plan = Convolution(x_shape, w_shape, geometry, dtype)
        x, dy = (to(array.astype(dtype)) for array in arrays[:2])
        w, b, dw = (to(array.astype(wide)) for array in arrays[2:])
        y, rectified, dx = (
            device.xp().empty(shape, dtype) for shape in (dy.shape, dy.shape, x_shape)
        )
        plan.forward(x, w, b, y)
        plan.forward(x, w, None, rectified, 0.25)
        plan.backward_data(dy, w, dx)
        plan.backward_weights(x, dy, dw)
        db = to(arrays[3].astype(wide))
        bias_gradient(dy, db)
        add_bias(dy, b)
        return [device.to_numpy(array) for array in (y, rectified, dx, dw, db, dy)]


def numbers(case):
    x_shape, w_shape, stride, pad, dilation, group = case
    rng = np.random.default_rng(7)
    output = ConvolutionGeometry(w_shape[2:], stride, pad, dilation, group).output_shape(
        x_shape[2:]
    )
    shapes = x_shape, (x_shape[0], w_shape[0], *output), w_shape, w_shape[:1], w_shape
    # Few bits, so that float16 has the same inputs.
    return [np.round(rng.standard_normal(shape) * 16) / 16 for shape in shapes]


@pytest.mark.parametrize("name", SHAPES)
def test_convolution_equals_the_cpus(name, gpu):
    arrays = numbers(SHAPES[name])
    expected = compute(HOST, SHAPES[name], np.float64, arrays)
    for dtype, precision in PRECISION.items():
        for found, wanted in zip(compute(gpu, SHAPES[name], dtype, arrays), expected):
            scale = max(1.0, np.abs(wanted).max())
            np.testing.assert_allclose(found, wanted, rtol=precision, atol=precision * scale)


@pytest.mark.parametrize("name", ["small images side by side", "large images apart", "groups"])
def test_convolution_in_parts_is_the_same(name, gpu, monkeypatch):
    arrays = numbers(SHAPES[name])
    whole = compute(gpu, SHAPES[name], np.float64, arrays)
    x_shape = SHAPES[name][0]
    monkeypatch.setattr(on_device, "WORKSPACE_BYTES", 8 * math.prod(x_shape) * 3)
    for found, wanted in zip(compute(gpu, SHAPES[name], np.float64, arrays), whole):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", PRECISION)
def test_inner_product_equals_the_cpus(transposed, dtype, on_gpu):
    m, n, k = 70, 5, 9
    rng = np.random.default_rng(3)
    x, w, b, dy, dw = (
        np.round(rng.standard_normal(shape) * 16) / 16
        for shape in ((m, k), (k, n) if transposed else (n, k), (n,), (m, n), (n, k))
    )
    wide = np.float32 if dtype == np.float16 else dtype
    dw = dw.reshape(w.shape)
    turned = w if transposed else w.T
    gradient = x.T @ dy if transposed else dy.T @ x
    expected = x @ turned + b, dy @ turned.T, dw + gradient, b + dy.sum(0)
    x, dy = (on_gpu.to_device(array.astype(dtype)) for array in (x, dy))
    w, b, dw = (on_gpu.to_device(array.astype(wide)) for array in (w, b, dw))
    y, dx = on_gpu.empty((m, n), dtype), on_gpu.empty((m, k), dtype)
    plan = InnerProduct(m, n, k, transposed, dtype)
    plan.forward(x, w, b, y)
    plan.backward_data(dy, w, dx)
    plan.backward_weights(x, dy, dw)
    bias_gradient(dy, b)
    for found, wanted in zip((y, dx, dw, b), expected):
        np.testing.assert_allclose(
            on_gpu.to_host(found), wanted, rtol=PRECISION[dtype], atol=PRECISION[dtype] * 10
        )


@pytest.mark.parametrize("shape", [(3, 5, 7, 9), (40, 3), (2, 2, 40, 33), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("slope", [0.0, 0.25])
def test_the_bias_gradient_of_a_rectified_sum(shape, slope, add, gpu):
    rng = np.random.default_rng(3)
    sign, dy = rng.standard_normal(shape).round(1), rng.standard_normal(shape)
    before = rng.standard_normal(shape[1])
    for dtype, precision in PRECISION.items():
        wide = np.float32 if dtype == np.float16 else dtype
        found = []
        for here, kinds in ((HOST, (np.float64, np.float64)), (gpu, (dtype, wide))):
            with device.use(here):
                to = device.xp().asarray
                arrays = [to(array.astype(kinds[0])) for array in (sign, dy)]
                db = to(before.astype(kinds[1]))
                rectified_bias_gradient(*arrays, db, slope, add)
                found.append([device.to_numpy(array) for array in (arrays[1], db)])
        for wanted, each in zip(*found):
            bound = precision * max(1.0, np.abs(wanted).max())
            np.testing.assert_allclose(each, wanted, rtol=precision, atol=4 * bound)
