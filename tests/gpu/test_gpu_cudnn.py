"""Convolutions through cuDNN's front end; the stand-in for it computes the graphs.

On a real GPU cuDNN itself does, if it is installed.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pycaffe_dist import device
from pycaffe_dist.kernels.convolution import Convolution, ConvolutionGeometry, LibraryConvolution
from pycaffe_dist.kernels.cuda import convolution, cudnn, plans

# x, w, stride, pad, dilation, groups.
SHAPES = {
    "plain": ((2, 3, 8, 9), (4, 3, 3, 3), (2, 1), (1, 0), (1, 2), 1),
    "groups": ((2, 4, 6, 5), (6, 2, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    "one axis": ((2, 3, 11), (4, 3, 4), (2,), (1,), (1,), 1),
    "three axes": ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), (1, 2, 1), (0, 1, 1), (1, 1, 2), 1),
}

POINTWISE = (2, 3, 8, 9), (4, 3, 1, 1), (1, 1), (0, 0), (1, 1), 1
ONE_CHANNEL = (2, 3, 8, 9), (3, 1, 3, 3), (1, 1), (1, 1), (1, 1), 3


@pytest.fixture
def streaming(stand_in, front_end):
    """The GPU of the stand-in for CuPy as the current device."""
    stand_in.fallbacks.clear()
    with device.use(stand_in):
        yield stand_in


def compute(gpu, cls, case):
    x_shape, w_shape, stride, pad, dilation, group = case
    geometry = ConvolutionGeometry(w_shape[2:], stride, pad, dilation, group)
    rng = np.random.default_rng(1)
    plan = cls(x_shape, w_shape, geometry, np.float32)
    y_shape = (x_shape[0], w_shape[0], *geometry.output_shape(x_shape[2:]))
    x, w, b, dy, dw = (
        gpu.to_device(rng.standard_normal(shape).astype(np.float32))
        for shape in (x_shape, w_shape, w_shape[:1], y_shape, w_shape)
    )
    y, dx = gpu.empty(y_shape, np.float32), gpu.empty(x_shape, np.float32)
    plan.forward(x, w, b, y, 0.5)
    plan.backward_data(dy, w, dx)
    plan.backward_weights(x, dy, dw)
    return [gpu.to_host(array) for array in (y, dx, dw)]


@pytest.mark.parametrize("name", SHAPES)
def test_graphs_compute_the_layers_convolution(name, streaming, front_end):
    expected = compute(streaming, Convolution, SHAPES[name])
    for found, wanted in zip(compute(streaming, LibraryConvolution, SHAPES[name]), expected):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert front_end.streams == [streaming.cuda_stream()] * 3


def test_what_cudnn_cannot_do_runs_on_our_own_kernels(streaming, front_end, monkeypatch, caplog):
    monkeypatch.setattr(front_end.pygraph, "unsupported", "data")
    with caplog.at_level(logging.INFO, "pcaffe"):
        found = compute(streaming, LibraryConvolution, SHAPES["plain"])
    for values, wanted in zip(found, compute(streaming, Convolution, SHAPES["plain"])):
        np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-5)
    assert len(front_end.streams) == 2
    refused = "conv_dgrad of (2, 3, 8, 9) by (4, 3, 3, 3) in float32: no plan can do this"
    assert caplog.messages == [
        "Convolutions run on cuDNN 9.10.2, unless their engine is CAFFE",
        f"Our own kernels run {refused}",
    ]
    assert streaming.fallbacks == {refused: 1}
    caplog.clear()
    streaming.warn_of_fallbacks()
    assert caplog.messages == [
        "cuDNN refused 1 operations: our own kernels ran 1 times in its place; the first is "
        + refused
    ]


def test_other_errors_of_the_front_end_end_the_run(streaming, front_end, monkeypatch):
    def fail(self):
        raise AssertionError("a bug of the front end")

    monkeypatch.setattr(front_end.pygraph, "check_support", fail)
    with pytest.raises(AssertionError, match="a bug of the front end"):
        compute(streaming, LibraryConvolution, SHAPES["plain"])


def test_without_cudnn_the_log_says_so_once(streaming, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "cudnn", None)
    with caplog.at_level(logging.INFO, "pcaffe"):
        compute(streaming, LibraryConvolution, SHAPES["plain"])
        compute(streaming, LibraryConvolution, SHAPES["groups"])
    (message,) = caplog.messages
    assert message.startswith("Convolutions run on our own kernels: no cuDNN (")


@pytest.fixture
def timing(streaming, front_end, monkeypatch, tmp_path):
    """A function that installs plans, and the GPU that times them."""
    clock = SimpleNamespace(perf_counter=lambda: front_end.clock.seconds)
    monkeypatch.setattr(plans, "folder", lambda: tmp_path)
    monkeypatch.setattr(plans, "time", clock)
    monkeypatch.setattr(streaming, "times_plans", True)

    def install(plans):
        front_end.executed.clear()
        monkeypatch.setattr(front_end.pygraph, "plans", plans)
        cudnn.library.cache_clear()
        return streaming

    return install


@pytest.fixture
def ours_takes(front_end, monkeypatch):
    """A function that lets our own kernels of the convolution by columns take so long."""

    def slow_down(seconds):
        for name in ("forward", "backward_data", "backward_weights"):
            method = getattr(convolution._ByColumns, name)

            def slow(*args, method=method):
                front_end.clock.seconds += seconds
                method(*args)

            monkeypatch.setattr(convolution._ByColumns, name, slow)

    return slow_down


def test_the_fastest_plan_is_kept_for_later_runs(timing, ours_takes, front_end):
    ours_takes(0.2)
    refused = {f"refused {number}": math.inf for number in range(10)}
    gpu = timing({**refused, "slow": 0.1, "fast": 0.0})
    found = compute(gpu, LibraryConvolution, SHAPES["plain"])
    for values, wanted in zip(found, compute(gpu, Convolution, SHAPES["plain"])):
        np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-5)
    # One call for a warm-up, three that are timed, and after all of them the real one.
    per_operation = [*["slow"] * 4, *["fast"] * 5]
    assert [name for what, name in front_end.executed if what == "weights"] == per_operation
    gpu = timing({"slow": 0.1, "refused": math.inf, "fast": 0.0})
    compute(gpu, LibraryConvolution, SHAPES["plain"])
    assert front_end.executed == [(what, "fast") for what in ("forward", "data", "weights")]
    kept = [json.loads(path.read_text()) for path in plans.folder().iterdir()]
    assert [each["plan"] for each in kept] == ["fast"] * 3
    assert {*kept[0]["seconds"]} == {"ours", "slow", "fast"}


def test_our_own_kernels_run_where_they_are_faster(timing, front_end):
    gpu = timing({"slow": 0.05})
    for name, shape in {**SHAPES, "one tap": POINTWISE, "one channel": ONE_CHANNEL}.items():
        front_end.executed.clear()
        found = compute(gpu, LibraryConvolution, shape)
        assert len(front_end.executed) == 12, name  # the timed calls
        for values, wanted in zip(found, compute(gpu, Convolution, shape)):
            np.testing.assert_array_equal(values, wanted)
    assert not gpu.fallbacks


@pytest.mark.parametrize("damage", ["", "{", '{"plan": "of another version"}'])
def test_a_kept_plan_that_cannot_be_used_is_timed_anew(timing, ours_takes, front_end, damage):
    ours_takes(0.05)
    gpu = timing({"fast": 0.0})
    compute(gpu, LibraryConvolution, SHAPES["plain"])
    for path in plans.folder().iterdir():
        path.write_text(damage)
    timing({"fast": 0.0})
    compute(gpu, LibraryConvolution, SHAPES["plain"])
    assert len(front_end.executed) == 15
    assert {json.loads(path.read_text())["plan"] for path in plans.folder().iterdir()} == {"fast"}


def test_each_precision_has_its_own_choice(timing, ours_takes, front_end, monkeypatch):
    ours_takes(0.05)
    gpu, given = timing({"fast": 0.0}), []
    deselect = front_end.pygraph.deselect_numeric_notes

    def note(self, notes):
        given.append([each.name for each in notes])
        deselect(self, notes)

    monkeypatch.setattr(front_end.pygraph, "deselect_numeric_notes", note)
    for tf32 in (True, False):
        monkeypatch.setattr(gpu, "tf32_convolutions", tf32)
        compute(gpu, LibraryConvolution, SHAPES["plain"])
    exact = ["NONDETERMINISTIC", "TENSOR_CORE", "DOWN_CONVERT_INPUTS"]
    assert given == [exact[:1]] * 3 + [exact] * 3
    assert len(list(plans.folder().iterdir())) == 6


@pytest.mark.skipif("PCAFFE_TEST_GPU" not in os.environ, reason="cuDNN needs a real GPU")
@pytest.mark.parametrize("times_plans", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_cudnn_computes_the_same_as_our_own_kernels(
    name, times_plans, on_gpu, monkeypatch, tmp_path
):
    pytest.importorskip("cudnn")
    monkeypatch.setenv("PCAFFE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(on_gpu, "times_plans", times_plans)
    found = compute(on_gpu, LibraryConvolution, SHAPES[name])
    for values, wanted in zip(found, compute(on_gpu, Convolution, SHAPES[name])):
        np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-4)
