"""Training with data in 16 bits: as good as in float32, also when gradients overflow."""

from __future__ import annotations

import math

import golden_runs
import numpy as np
import pytest

from pycaffe_dist.device import HOST
from pycaffe_dist.errors import UsageError
from pycaffe_dist.kernels.cuda import casting
from pycaffe_dist.precision import bfloat16
from pycaffe_dist.schema import text
from pycaffe_dist.solvers import Solver
from pycaffe_dist.solvers.loss_scale import LossScale


@pytest.fixture(autouse=True)
def in_golden_folder(monkeypatch):
    monkeypatch.chdir(golden_runs.GOLDEN)


def half_solver(device, data_type="float16", **fields):
    param = text.read_solver("solver_sgd.prototxt")
    param.ClearField("snapshot")
    param.data_type = data_type
    for name, value in fields.items():
        setattr(param, name, value)
    solver = Solver(param, device=device)
    solver.load_weights(["init.caffemodel"])
    return solver


@pytest.mark.parametrize("fields", [{}, {"loss_scale": 64}, {"clip_gradients": 0.5}], ids=str)
def test_it_learns_as_well_as_float32(gpu, fields):
    solver = half_solver(gpu, **fields)
    case = "sgd_step_clip" if "clip_gradients" in fields else "sgd"
    expected = np.load(f"expected_{case}.npz")["losses"]
    losses = golden_runs.losses_of(solver, golden_runs.ITERATIONS)
    if not fields.get("clip_gradients"):
        np.testing.assert_allclose(losses, expected, rtol=0.02)
    assert losses[-1] < losses[0]
    for parameter in solver.net.parameters:
        assert parameter.blob.dtype == np.float32
    assert {blob.dtype.name for blob in solver.net.blobs.values()} == {"float16", "float32"}


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_casts_round_as_on_the_host(name, on_gpu):
    dtype = bfloat16() if name == "bfloat16" else np.dtype(name)
    special = [0.0, -0.0, 1.0, -1.5, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 65519.0, 1e30, np.inf, np.nan]
    values = np.float32([*special, *np.random.default_rng(0).normal(0, 100, 1001)])
    values = np.append(values, np.float32(2.0**-14) * values)
    wide = on_gpu.to_device(values)
    narrow, back = (on_gpu.empty(values.shape, each) for each in (dtype, np.float32))
    casting.cast(wide, narrow)
    casting.cast(narrow, back)
    with np.errstate(over="ignore"):
        expected = values.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(on_gpu.to_host(back), expected)
    casting.add_to(narrow, wide)
    np.testing.assert_array_equal(on_gpu.to_host(wide), values + expected)


def test_cupy_casts_bfloat16_as_our_kernels_do(on_gpu):
    """Layers without kernels of their own for it use these."""
    values = np.float32([0.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -65519.0, 1e30, np.inf])
    narrow = on_gpu.to_device(values).astype(bfloat16())
    expected = values.astype(bfloat16()).astype(np.float32)
    np.testing.assert_array_equal(on_gpu.to_host(narrow.astype(np.float32)), expected)
    filled = on_gpu.empty(values.shape, np.float32)
    filled[...] = narrow
    filled += narrow
    np.testing.assert_array_equal(on_gpu.to_host(filled), 2 * expected)


def test_bfloat16_learns_without_a_loss_scale(gpu):
    solver = half_solver(gpu, "bfloat16")
    assert solver.state.loss_scale is None
    losses = golden_runs.losses_of(solver, golden_runs.ITERATIONS)
    np.testing.assert_allclose(losses, np.load("expected_sgd.npz")["losses"], rtol=0.1)
    assert losses[-1] < losses[0]
    assert {parameter.blob.dtype.name for parameter in solver.net.parameters} == {"float32"}
    assert {blob.dtype.name for blob in solver.net.blobs.values()} == {"bfloat16", "float32"}


def test_an_overflow_leaves_the_weights_alone_and_halves_the_scale(gpu):
    solver = half_solver(gpu)
    solver.state.loss_scale.value = 2.0**24
    before = [parameter.blob.data.copy() for parameter in solver.net.parameters]
    solver.step(1)
    assert solver.state.loss_scale.value == 2.0**23
    for parameter, weights in zip(solver.net.parameters, before):
        np.testing.assert_array_equal(parameter.blob.data, weights)
    while solver.state.loss_scale.value > 2.0**10:
        solver.step(1)
        if any((p.blob.data != w).any() for p, w in zip(solver.net.parameters, before)):
            return
    pytest.fail("no update was ever made")


def test_the_scale_grows_again_and_a_fixed_one_stays():
    scale = LossScale(0)
    first = scale.value
    assert not scale.judge(math.nan)
    assert scale.value == first / 2
    for _ in range(1000):
        assert scale.judge(1.0)
    assert scale.value == first
    again = LossScale(0)
    again.set_state(scale.state())
    assert again.value == first
    fixed = LossScale(8)
    fixed.judge(math.inf)
    assert fixed.value == 8


@pytest.mark.parametrize(
    ("data_type", "message"),
    [
        ("float16", "float16 needs a GPU"),
        ("bfloat16", "needs a GPU"),
        ("half", "unknown data_type 'half'"),
    ],
)
def test_impossible_settings_are_refused(data_type, message):
    with pytest.raises(UsageError, match=message):
        half_solver(HOST, data_type=data_type)
