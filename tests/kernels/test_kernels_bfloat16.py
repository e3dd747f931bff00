"""Products in bfloat16, on every unit of this machine, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels import bfloat16
from pycaffe_dist.kernels.convolution import Convolution as Exact
from pycaffe_dist.kernels.im2col import ConvolutionGeometry
from pycaffe_dist.kernels.jit.bfloat16.convolution import Convolution, suits
from pycaffe_dist.kernels.jit.bfloat16.inner_product import InnerProduct
from pycaffe_dist.kernels.jit.bfloat16.kernels import PairKernel, TileKernel, TileSwitch
from pycaffe_dist.kernels.jit.bfloat16.units import KINDS, Unit, unit_for
from pycaffe_dist.kernels.jit.codegen.objects import compile_module
from pycaffe_dist.kernels.jit.codegen.target import Target, host_levels, target

pytestmark = pytest.mark.usefixtures("two_threads")

LEVELS = [level for level in host_levels() if level != "none"]

# Images, channels, height, width, outputs, kernel, stride, pad, dilation, group.
CONVOLUTIONS = {
    "1x1": (1, 64, 7, 7, 96, 1, 1, 0, 1, 1),
    "1x1, many pixels": (2, 33, 23, 19, 40, 1, 1, 0, 1, 1),
    "1x1, stride 2": (1, 48, 14, 15, 20, 1, 2, 0, 1, 1),
    "3x3": (3, 64, 14, 14, 70, 3, 1, 1, 1, 1),
    "3x3, odd channels, few outputs": (2, 17, 7, 9, 5, 3, 1, 1, 1, 1),
    "3x3, stride 2": (2, 32, 15, 16, 33, 3, 2, 1, 1, 1),
    "5x5, groups": (2, 48, 13, 13, 40, 5, 1, 2, 1, 2),
    "dilated": (1, 32, 12, 20, 20, 3, 1, 2, 2, 1),
    "a stride longer than the kernel": (1, 16, 23, 23, 24, 2, 3, 0, 1, 1),
    "more padding than image": (1, 16, 3, 2, 17, 3, 1, 4, 1, 1),
}
# Samples, outputs, inputs, transposed.
PRODUCTS = [(1, 10, 50, False), (1, 70, 256, False), (5, 37, 64, True), (40, 64, 97, False)]


def units():
    """Return the units that this machine can use: its fastest one, and the one for all machines."""
    fastest = unit_for(target())
    return {fastest.kind: fastest, "floats": Unit(target(), "floats")}


@pytest.fixture(params=[*(f"floats on {level}" for level in LEVELS), *(set(units()) - {"floats"})])
def unit(request, monkeypatch):
    kind, _, level = request.param.partition(" on ")
    if level:
        monkeypatch.setenv("PCAFFE_SIMD", level)
    return Unit(target(), kind)


def random(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def rounded(values):
    """Return float64 numbers: ``values``, rounded to nearest even with 8 bits."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    near = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return near.astype(np.uint32).view(np.float32).astype(np.float64)


def assert_close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(case, unit):
    n, c, h, w, m, k, s, p, d, group = CONVOLUTIONS[case]
    rng = np.random.default_rng(0)
    geometry = ConvolutionGeometry((k, k), (s, s), (p, p), (d, d), group)
    x, weights, bias = random(rng, n, c, h, w), random(rng, m, c // group, k, k), random(rng, m)
    assert suits(weights.shape, geometry)
    exact = Exact(x.shape, weights.shape, geometry, np.float64)
    wanted = np.zeros(exact.y_shape)
    exact.forward(rounded(x), rounded(weights), None, wanted)
    plan, y = Convolution(unit, x.shape, weights.shape, geometry), random(rng, *exact.y_shape)
    plan.hold(weights)
    for _ in range(2):
        plan.forward(x, None, None, y)
        assert_close(y, wanted)
    wanted += bias[:, None, None]
    plan.forward(x, None, bias, y, 0.5)
    assert_close(y, np.where(wanted < 0, 0.5 * wanted, wanted))
    plan = Convolution(unit, x.shape, weights.shape, geometry, adds=True)
    plan.hold(weights)
    before = y.astype(np.float64)
    plan.forward(x, None, bias, y, 0.0)
    assert_close(y, np.maximum(wanted + before, 0))


@pytest.mark.parametrize(("m", "n", "k", "transposed"), PRODUCTS)
def test_inner_products(m, n, k, transposed, unit):
    rng = np.random.default_rng(0)
    x, w, b, y = random(rng, m, k), random(rng, n, k), random(rng, n), random(rng, m, n)
    wanted = rounded(x) @ rounded(w).T
    plan = InnerProduct(unit, m, n, k, transposed)
    plan.hold(np.ascontiguousarray(w.T) if transposed else w)
    plan.forward(x, None, None, y)
    assert_close(y, wanted)
    wanted += b
    plan.forward(x, None, b, y, 0.25)
    assert_close(y, np.where(wanted < 0, 0.25 * wanted, wanted))


def test_infinity_and_nan_stay(unit):
    geometry = ConvolutionGeometry((1, 1), (1, 1), (0, 0), (1, 1))
    x, y = np.ones((1, 16, 4, 5), np.float32), np.zeros((1, 3, 4, 5), np.float32)
    x[0, 3, 1, 2], x[0, 5, 2, 2] = np.inf, np.float32(np.nan)
    # All bits of its fraction are set: adding to them would overflow into the sign.
    x.view(np.uint32)[0, 7, 3, 4] = 0x7FFFFFFF
    plan = Convolution(unit, x.shape, (3, 16, 1, 1), geometry)
    plan.hold(np.ones((3, 16, 1, 1), np.float32))
    plan.forward(x, None, None, y)
    assert np.isposinf(y[:, :, 1, 2]).all()
    assert np.isnan(y[:, :, [2, 3], [2, 4]]).all()
    y[:, :, [1, 2, 3], [2, 2, 4]] = 16
    assert (y == 16).all()


def test_the_fastest_unit_of_a_processor(monkeypatch):
    from pycaffe_dist.kernels.jit.bfloat16 import units as module

    def kind(level, features):
        lanes = {"avx512": 16, "avx2": 8}[level]
        return unit_for(Target(level, lanes, 32, True, "some", features)).kind

    tiles = "+avx512f,+amx-tile,+amx-bf16,+avx512bf16"
    monkeypatch.setattr(module, "_may_use_tiles", lambda: True)
    assert kind("avx512", tiles) == "tiles"
    monkeypatch.setattr(module, "_may_use_tiles", lambda: False)
    assert kind("avx512", tiles) == "floats"
    assert kind("avx512", "+avx512f,+avx512bf16,-amx-bf16") == "dots"
    assert kind("avx512", "+avx512f,-avx512bf16") == "floats"
    assert kind("avx2", "") == "floats"


@pytest.mark.parametrize(
    ("processor", "kernel"),
    [
        ("sapphirerapids", TileKernel(32, 32, 32)),
        ("sapphirerapids", TileKernel(16, 16, 32)),
        ("sapphirerapids", TileSwitch()),
        ("znver4", PairKernel(14, 32, 32, dots=True)),
        ("cooperlake", PairKernel(1, 16, 32, dots=True)),
    ],
)
def test_kernels_compile_for_processors_that_this_may_not_be(processor, kernel):
    unit = Target("avx512", 16, 32, True, processor, "", "x86_64-unknown-linux-gnu")
    assert compile_module(kernel.build(unit), unit)


def test_where_float32_is_faster_there_is_no_plan(monkeypatch):
    geometry = ConvolutionGeometry((3, 3), (1, 1), (1, 1), (1, 1))
    monkeypatch.setattr(bfloat16, "_unit", lambda _: Unit(target(), "floats"))
    assert bfloat16.convolution((1, 64, 8, 8), (64, 64, 3, 3), geometry, False) is None
    assert bfloat16.inner_product(16, 10, 50, False) is None
    assert isinstance(bfloat16.inner_product(1, 10, 50, False), InnerProduct)
    monkeypatch.setattr(bfloat16, "_unit", lambda _: Unit(target(), "dots"))
    assert bfloat16.convolution((1, 3, 8, 8), (64, 3, 3, 3), geometry, False) is None
    assert set(KINDS) == {"tiles", "dots", "floats"}


def test_a_kernel_as_large_as_the_image_is_an_inner_product(monkeypatch):
    monkeypatch.setattr(bfloat16, "_unit", lambda _: Unit(target(), "floats"))
    geometry = ConvolutionGeometry((6, 6), (1, 1), (0, 0), (1, 1))
    rng = np.random.default_rng(0)
    x, w, y = random(rng, 2, 8, 6, 6), random(rng, 5, 8, 6, 6), random(rng, 2, 5, 1, 1)
    plan = bfloat16.convolution(x.shape, w.shape, geometry, False)
    assert isinstance(plan, InnerProduct)
    plan.hold(w)
    plan.forward(x, None, None, y)
    assert_close(y.reshape(2, 5), rounded(x).reshape(2, -1) @ rounded(w).reshape(5, -1).T)
