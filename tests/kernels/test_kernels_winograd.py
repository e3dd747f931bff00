"""Winograd convolutions against a slow float64 reference, and when they are chosen."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_reference import WINOGRAD_LOSS, close, convolution, convolution_backward, use_unit

from pycaffe_dist.kernels.convolution import Convolution, ConvolutionGeometry
from pycaffe_dist.kernels.jit.codegen.target import target
from pycaffe_dist.kernels.jit.convolution.rows import RowConvolution
from pycaffe_dist.kernels.jit.convolution.weights import WeightGradient
from pycaffe_dist.kernels.jit.winograd.convolution import WinogradConvolution
from pycaffe_dist.kernels.jit.winograd.costs import TILES, best_tile
from pycaffe_dist.kernels.jit.winograd.gradient import WinogradGradient
from pycaffe_dist.kernels.jit.winograd.phases import PhasedConvolution, PhasedGradient
from pycaffe_dist.kernels.jit.winograd.toom_cook import matrices
from pycaffe_dist.kernels.jit.workspace import Workspace
from pycaffe_dist.threads import set_threads, thread_count


@pytest.fixture(params=["avx512", "avx2", "sse"])
def unit(request, monkeypatch):
    """Run a test with every vector unit."""
    use_unit(request.param, monkeypatch)
    return target()


def square(kernel, pad=0, group=1, stride=1, dilation=1):
    pads = pad if isinstance(pad, tuple) else (pad, pad)
    return ConvolutionGeometry((kernel,) * 2, (stride,) * 2, pads, (dilation,) * 2, group)


# x shape, outputs, geometry
CASES = {
    "3x3": ((3, 5, 9, 11), 7, square(3, 1)),
    "3x3 unpadded": ((2, 3, 8, 10), 4, square(3)),
    "3x3 far": ((1, 2, 5, 4), 9, square(3, 2)),
    "3x3 uneven": ((2, 3, 7, 6), 5, square(3, (0, 2))),
    "3x3 deep": ((1, 300, 5, 6), 10, square(3, 1)),
    "3x3 wide": ((1, 3, 6, 270), 5, square(3, 1)),
    "3x3 groups": ((9, 12, 13, 13), 8, square(3, 1, group=2)),
    "3x3 many outputs": ((1, 4, 6, 7), 170, square(3, 1)),
    "5x5": ((9, 6, 8, 8), 9, square(5, 2)),
    "5x5 unpadded": ((2, 6, 12, 12), 5, square(5)),
    "5x5 groups": ((2, 10, 9, 7), 6, square(5, 2, group=2)),
    "5x5 far": ((1, 2, 5, 6), 3, square(5, 4)),
    "3x3 one pixel": ((3, 4, 3, 3), 5, square(3)),
}


def arrays(case):
    x_shape, outputs, geometry = case
    rng = np.random.default_rng(1)
    x = rng.standard_normal(x_shape, np.float32)
    w = rng.standard_normal((outputs, x_shape[1] // geometry.group, *geometry.kernel), np.float32)
    b = rng.standard_normal(outputs, np.float32)
    dy_shape = (x_shape[0], outputs, *geometry.output_shape(x_shape[2:]))
    return x, w, b, rng.standard_normal(dy_shape, np.float32)


def guarded(shape):
    """Return an array of NaN, and the memory around it, which must not change."""
    size, guard = int(np.prod(shape)), 64
    memory = np.full(size + 2 * guard, np.nan, np.float32)
    memory[:guard] = memory[-guard:] = 7
    return memory[guard:-guard].reshape(shape), (memory[:guard], memory[-guard:])


def is_close(found, expected, terms, tile=2):
    close(found, expected, terms=terms, loss=WINOGRAD_LOSS[tile])


@pytest.fixture(autouse=True)
def few_tiles_keep_weights(monkeypatch):
    monkeypatch.setattr("pycaffe_dist.kernels.jit.winograd.convolution.ENOUGH_TILES", 1)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_convolution(unit, name, tile, monkeypatch):
    x, w, b, dy = arrays(CASES[name])
    geometry = CASES[name][2]
    y, around = guarded(dy.shape)
    WinogradConvolution(unit, x.shape, w.shape, geometry, False, tile).run(x, w, b, y, 0.5)
    expected = convolution(x, w, geometry) + b[:, None, None]
    is_close(y, np.where(expected < 0, 0.5 * expected, expected), w[0].size, tile)
    monkeypatch.setattr("pycaffe_dist.kernels.jit.winograd.convolution.FILTER_BYTES", 0)
    again, around_again = guarded(dy.shape)
    WinogradConvolution(unit, x.shape, w.shape, geometry, False, tile).run(x, w, b, again, 0.5)
    np.testing.assert_array_equal(again, y)
    assert all((part == 7).all() for part in around + around_again)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_gradients(unit, name, tile):
    x, w, _, dy = arrays(CASES[name])
    geometry = CASES[name][2]
    expected = convolution_backward(x, w, dy, geometry)
    dx, around = guarded(x.shape)
    WinogradConvolution(unit, x.shape, w.shape, geometry, True, tile).run(dy, w, None, dx)
    is_close(dx, expected[0], w[:, 0].size, tile)
    dw, around_dw = guarded(w.shape)
    dw[...] = 3
    WinogradGradient(unit, x.shape, w.shape, geometry, tile).run(x, dy, dw)
    is_close(dw - 3, expected[1], dy[:, 0].size, tile)
    assert all((part == 7).all() for part in around + around_dw)


@pytest.mark.parametrize("kernel", [3, 5])
def test_the_error_of_large_tiles_is_a_few_millionths(unit, kernel):
    rng = np.random.default_rng(0)
    geometry, w_shape = square(kernel, kernel // 2), (16, 64, kernel, kernel)
    x, w = rng.standard_normal((2, 64, 16, 16), "f"), rng.standard_normal(w_shape, "f")
    dy = rng.standard_normal((2, 16, 16, 16), "f")
    found = np.empty_like(dy), np.empty_like(x), np.zeros_like(w)
    WinogradConvolution(unit, x.shape, w_shape, geometry, False, 4).run(x, w, None, found[0])
    WinogradConvolution(unit, x.shape, w_shape, geometry, True, 4).run(dy, w, None, found[1])
    WinogradGradient(unit, x.shape, w_shape, geometry, 4).run(x, dy, found[2])
    dx, dw = convolution_backward(x, w, dy, geometry)[:2]
    for part, expected in zip(found, (convolution(x, w, geometry), dx, dw)):
        error = np.sqrt(np.mean((part - expected) ** 2) / np.mean(expected**2))
        assert error < {3: 2e-6, 5: 5e-6}[kernel]


def test_results_depend_neither_on_threads_nor_on_other_images(unit):
    x, w, b, dy = arrays(CASES["3x3 groups"])
    geometry, before = CASES["3x3 groups"][2], thread_count()
    found, gradients = [], []
    for threads in (1, 2, 3):
        set_threads(threads)
        y, dw = np.empty_like(dy), np.zeros_like(w)
        WinogradConvolution(unit, x.shape, w.shape, geometry, False, 4).run(x, w, b, y)
        WinogradGradient(unit, x.shape, w.shape, geometry, 4).run(x, dy, dw)
        found.append(y)
        gradients.append(dw)
    set_threads(before)
    alone = np.empty_like(dy[4:5])
    WinogradConvolution(unit, (1, *x.shape[1:]), w.shape, geometry, False, 4).run(
        x[4:5].copy(), w, b, alone
    )
    for parts in (found, gradients):
        np.testing.assert_array_equal(parts[0], parts[1])
        np.testing.assert_array_equal(parts[0], parts[2])
    np.testing.assert_array_equal(found[0][4:5], alone)


def test_many_tiles_are_transformed_some_at_a_time(unit, monkeypatch):
    x, w, b, dy = arrays(CASES["5x5"])
    geometry, y, dw = CASES["5x5"][2], np.empty_like(dy), np.zeros_like(w)
    for name in ("INPUT_BYTES", "PRODUCT_BYTES", "FEWEST_TILES", "BLOCK_BYTES"):
        monkeypatch.setattr(f"pycaffe_dist.kernels.jit.winograd.convolution.{name}", 1)
    monkeypatch.setattr("pycaffe_dist.kernels.jit.winograd.gradient.TILE_BYTES", 1)
    monkeypatch.setattr("pycaffe_dist.kernels.jit.winograd.gradient.FEWEST_TILES", 1)
    for kept in (1 << 21, 0):
        monkeypatch.setattr("pycaffe_dist.kernels.jit.winograd.convolution.FILTER_BYTES", kept)
        WinogradConvolution(unit, x.shape, w.shape, geometry, False, 4).run(x, w, b, y)
        is_close(y, convolution(x, w, geometry) + b[:, None, None], w[0].size, 4)
    WinogradGradient(unit, x.shape, w.shape, geometry, 4).run(x, dy, dw)
    is_close(dw, convolution_backward(x, w, dy, geometry)[1], dy[:, 0].size, 4)


@pytest.mark.parametrize("name", ["3x3", "3x3 groups", "3x3 many outputs", "5x5"])
def test_gradients_are_sums_over_parts_of_the_images(unit, name, monkeypatch):
    x, w, _, dy = arrays(CASES[name])
    geometry, before, found = CASES[name][2], thread_count(), []
    for constant in ("PART_TILES", "BLOCK_BYTES"):
        monkeypatch.setattr(f"pycaffe_dist.kernels.jit.winograd.gradient.{constant}", 1)
    for threads, parts in ((1, 16), (2, 16), (3, 16), (3, 2)):
        set_threads(threads)
        monkeypatch.setattr("pycaffe_dist.kernels.jit.winograd.gradient.PARTS", parts)
        dw, around = guarded(w.shape)
        dw[...] = 3
        WinogradGradient(unit, x.shape, w.shape, geometry, 4).run(x, dy, dw)
        is_close(dw - 3, convolution_backward(x, w, dy, geometry)[1], dy[:, 0].size, 4)
        assert all((part == 7).all() for part in around)
        found.append(dw)
    set_threads(before)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_new_weights_are_used_at_the_next_run(unit):
    x, w, b, dy = arrays(CASES["3x3"])
    plan = WinogradConvolution(unit, x.shape, w.shape, CASES["3x3"][2], False, 2)
    y = np.empty_like(dy)
    plan.run(x, np.zeros_like(w), None, y)
    assert not y.any()
    plan.run(x, w, b, y)
    is_close(y, convolution(x, w, CASES["3x3"][2]) + b[:, None, None], w[0].size)


@pytest.mark.parametrize("outputs", TILES)
@pytest.mark.parametrize("taps", [3, 5])
def test_the_matrices_are_exact(outputs, taps):
    output, filters, inputs = (np.array(part) for part in matrices(outputs, taps))
    for k in range(taps):
        for i in range(taps + outputs - 1):
            # If one tap and one input are 1 and the others 0, only their common output is 1.
            found = output @ (filters[:, k] * inputs[:, i])
            assert list(found) == [int(i == k + j) for j in range(outputs)]


def test_memory_is_lent_again():
    memory = Workspace()
    with memory.lend(1000) as first, memory.lend(10) as second:
        assert first.size == 1000 and second.size == 10 and not np.shares_memory(first, second)
        assert first.ctypes.data % 64 == 0 and memory.kept_bytes == 0
    with memory.lend(500) as again:
        assert np.shares_memory(first, again)
    assert memory.kept_bytes >= 4000


STRIDED = {
    "11x11": ((3, 3, 35, 39), 8, square(11, stride=4)),
    "5x5 padded": ((8, 4, 20, 23), 10, square(5, 2, stride=2)),
    "9x9 groups": ((2, 6, 19, 18), 6, square(9, (1, 3), group=2, stride=3)),
    "6x6 unread rows": ((1, 2, 19, 17), 3, square(6, stride=2)),
}


@pytest.mark.parametrize("name", STRIDED)
def test_phases_compute_the_strided_convolution(unit, name):
    x, w, b, dy = arrays(STRIDED[name])
    geometry = STRIDED[name][2]
    (y, around), (dw, around_dw) = guarded(dy.shape), guarded(w.shape)
    dw[...] = 3
    PhasedConvolution(unit, x.shape, w.shape, geometry, tile=4).run(x, w, b, y, 0.5)
    PhasedGradient(unit, x.shape, w.shape, geometry, tile=4).run(x, dy, dw)
    expected = convolution(x, w, geometry) + b[:, None, None]
    is_close(y, np.where(expected < 0, 0.5 * expected, expected), w[0].size, 4)
    is_close(dw - 3, convolution_backward(x, w, dy, geometry)[1], dy[:, 0].size, 4)
    assert all((part == 7).all() for part in around + around_dw)


def test_phases_are_chosen_for_wide_strided_kernels(unit):
    shape, geometry = (32, 3, 227, 227), square(11, stride=4)
    plan = Convolution(shape, (96, 3, 11, 11), geometry)._ways
    kinds = PhasedConvolution, PhasedGradient, RowConvolution
    assert tuple(map(type, (plan._forward, plan._weights, plan._data))) == kinds
    plan = Convolution(shape, (96, 3, 7, 7), square(7, 3, stride=2))._ways
    assert (type(plan._forward), type(plan._weights)) == (RowConvolution, WeightGradient)


LARGE = (16, 128, 28, 28)


DIRECTIONS = "forward", "data", "weights"


def choices(unit, x_shape, outputs, geometry):
    """Return the tiles of each direction by the rule, and by a plan."""
    w_shape = (outputs, x_shape[1] // geometry.group, *geometry.kernel)
    tiles = [best_tile(unit, x_shape, w_shape, geometry, each) for each in DIRECTIONS]
    if geometry.group == 1:
        ways = Convolution(x_shape, w_shape, geometry)._ways
        plans = ways._forward, ways._data, ways._weights
        filtered = [isinstance(plan, WinogradConvolution | WinogradGradient) for plan in plans]
        assert filtered == [tile > 0 for tile in tiles]
    return tiles


@pytest.mark.parametrize("geometry", [square(3, 1), square(5, 2)], ids=["3x3", "5x5"])
def test_it_is_chosen_for_many_channels(unit, geometry):
    assert all(choices(unit, LARGE, 128, geometry))


@pytest.mark.parametrize(
    ("outputs", "geometry"),
    [
        (128, square(3, 1, stride=2)),
        (128, square(3, 2, dilation=2)),
        (128, square(3, 3)),  # padded beyond the kernel
        (128, square(7, 3)),
        (128, ConvolutionGeometry((3, 5), (1, 1), (1, 2), (1, 1))),
        (256, square(3, 1, group=128)),
    ],
)
def test_it_is_only_for_square_kernels_without_strides_and_dilation(unit, outputs, geometry):
    assert not any(choices(unit, LARGE, outputs, geometry))


@pytest.mark.parametrize("channels", [1, 3])
def test_with_few_channels_transforms_cost_more_than_they_save(unit, channels):
    forward, _, weights = choices(unit, (16, channels, 32, 32), 32, square(3, 1))
    assert (forward, weights) == (0, 0)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_more_channels_never_make_it_slower(unit, direction):
    """All channels of the other side share the transforms of a tile."""
    chosen = []
    for channels in (16, 32, 64, 128, 256, 512):
        shapes = (16, channels, 28, 28), (channels, channels, 3, 3), square(3, 1)
        chosen.append(best_tile(unit, *shapes, direction) > 0)
    assert chosen == sorted(chosen)
    assert chosen[-1]


def test_the_choice_is_the_same_for_parts_of_a_batch(unit):
    for channels in (8, 16, 20, 32, 64):
        for direction in ("forward", "data", "weights"):
            shapes = [(n, channels, 12, 12) for n in (1, 3, 64)]
            w_shape = (50, channels, 5, 5)
            found = {best_tile(unit, s, w_shape, square(5), direction) for s in shapes}
            assert len(found) == 1
