"""Convolution by minimal filtering against a slow float64 reference, and when it is chosen."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_reference import close, convolution, convolution_backward, use_unit

from pycaffe_dist import device
from pycaffe_dist.kernels.convolution import Convolution, ConvolutionGeometry
from pycaffe_dist.kernels.jit.rows import RowConvolution
from pycaffe_dist.kernels.jit.target import target
from pycaffe_dist.kernels.jit.toom_cook import matrices
from pycaffe_dist.kernels.jit.winograd import WinogradConvolution, suits


@pytest.fixture(params=["avx512", "avx2"])
def unit(request, monkeypatch):
    """Run a test with every vector unit that has masked loads."""
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
    """Return an array of NaN, and the memory around it, which nobody may write to."""
    size, guard = int(np.prod(shape)), 64
    memory = np.full(size + 2 * guard, np.nan, np.float32)
    memory[:guard] = memory[-guard:] = 7
    return memory[guard:-guard].reshape(shape), (memory[:guard], memory[-guard:])


def is_close(found, expected, terms):
    # Sums and differences of inputs come before the products: a few bits are lost.
    close(found / 6, expected / 6, terms=terms)


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_convolution(unit, name):
    x, w, b, dy = arrays(CASES[name])
    geometry = CASES[name][2]
    y, around = guarded(dy.shape)
    WinogradConvolution(unit, x.shape, w.shape, geometry, False).run(x, w, b, y, 0.5)
    expected = convolution(x, w, geometry) + b[:, None, None]
    is_close(y, np.where(expected < 0, 0.5 * expected, expected), w[0].size)
    assert all((part == 7).all() for part in around)


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_data_gradient(unit, name):
    x, w, _, dy = arrays(CASES[name])
    geometry = CASES[name][2]
    dx, around = guarded(x.shape)
    WinogradConvolution(unit, x.shape, w.shape, geometry, True).run(dy, w, None, dx)
    is_close(dx, convolution_backward(x, w, dy, geometry)[0], w[:, 0].size)
    assert all((part == 7).all() for part in around)


def test_results_depend_neither_on_threads_nor_on_other_images(unit):
    x, w, b, dy = arrays(CASES["3x3 groups"])
    geometry, before = CASES["3x3 groups"][2], device.threads()
    found = []
    for threads in (1, 2, 3):
        device.set_threads(threads)
        y = np.empty_like(dy)
        WinogradConvolution(unit, x.shape, w.shape, geometry, False).run(x, w, b, y)
        found.append(y)
    device.set_threads(before)
    alone = np.empty_like(dy[4:5])
    WinogradConvolution(unit, (1, *x.shape[1:]), w.shape, geometry, False).run(
        x[4:5].copy(), w, b, alone
    )
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[0][4:5], alone)


def test_new_weights_count_at_the_next_run(unit):
    x, w, b, dy = arrays(CASES["3x3"])
    plan = WinogradConvolution(unit, x.shape, w.shape, CASES["3x3"][2], False)
    y = np.empty_like(dy)
    plan.run(x, np.zeros_like(w), None, y)
    assert not y.any()
    plan.run(x, w, b, y)
    is_close(y, convolution(x, w, CASES["3x3"][2]) + b[:, None, None], w[0].size)


@pytest.mark.parametrize("taps", [3, 5])
def test_the_matrices_are_exact(taps):
    output, filters, inputs = (np.array(part) for part in matrices(2, taps))
    for k in range(taps):
        for i in range(taps + 1):
            # Of one tap and one input only the outputs that join them are 1.
            found = output @ (filters[:, k] * inputs[:, i])
            assert list(found) == [int(i == k), int(i == k + 1)]


LARGE = (16, 128, 28, 28)


@pytest.mark.parametrize(
    ("x_shape", "outputs", "geometry", "wanted"),
    [
        (LARGE, 128, square(3, 1), True),
        (LARGE, 128, square(5, 2), True),
        (LARGE, 128, square(3, 1, stride=2), False),
        (LARGE, 128, square(3, 2, dilation=2), False),
        (LARGE, 128, square(3, 3), False),  # beyond the kernel
        (LARGE, 128, square(7, 3), False),
        (LARGE, 128, ConvolutionGeometry((3, 5), (1, 1), (1, 2), (1, 1)), False),
        (LARGE, 256, square(3, 1, group=128), False),
        ((1, 512, 3, 3), 512, square(3, 1), False),  # transforming the weights costs more
        ((16, 3, 32, 32), 32, square(3, 1), False),
    ],
)
def test_it_is_chosen_where_it_is_faster(unit, x_shape, outputs, geometry, wanted):
    w_shape = (outputs, x_shape[1] // geometry.group, *geometry.kernel)
    assert suits(unit, x_shape, w_shape, geometry, False) == wanted
    plan = Convolution(x_shape, w_shape, geometry)
    if geometry.group == 1:
        kind = WinogradConvolution if wanted else RowConvolution
        assert isinstance(plan._ways._forward, kind)


def test_the_choice_is_the_same_for_parts_of_a_batch(unit):
    for channels in (8, 16, 20, 32, 64):
        for backward in (False, True):
            shapes = [(n, channels, 12, 12) for n in (1, 3, 64)]
            w_shape = (50, channels, 5, 5)
            assert len({suits(unit, s, w_shape, square(5), backward) for s in shapes}) == 1


def test_narrow_vectors_go_row_by_row(monkeypatch):
    use_unit("sse", monkeypatch)
    w_shape = (128, 128, 3, 3)
    assert not suits(target(), LARGE, w_shape, square(3, 1), False)
