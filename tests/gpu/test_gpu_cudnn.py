"""Convolutions through cuDNN's front end; a fake front end computes the graphs.

On a real GPU cuDNN itself does, if it is installed.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pycaffe_dist import device
from pycaffe_dist.gpu.emulated import EmulatedGPU, compiler
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


class Tensor:
    def __init__(self, name="", dim=(), stride=(), data_type=None):
        self.name, self.dim, self.stride, self.data_type = name, dim, stride, data_type
        self.is_output = False

    def set_output(self, value):
        self.is_output = value

    def set_dim(self, dim):
        self.dim = dim

    def set_stride(self, stride):
        self.stride = stride

    def set_data_type(self, data_type):
        self.data_type = data_type

    def array(self, pointer):
        """Return the described memory as an array."""
        assert self.stride == [math.prod(self.dim[i + 1 :]) for i in range(len(self.dim))]
        count, dtype = math.prod(self.dim), np.dtype(self.data_type)
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
        return np.frombuffer(memory, dtype).reshape(self.dim)


executed: list[tuple[str, str]] = []  # the operations and plans that ran
clock = SimpleNamespace(seconds=0.0)  # only plans and kernels that a test slows down let it go on


class NotSupported(Exception):
    """The front end's own error, which is no RuntimeError."""


class Graph:
    """A fake of the front end's graph that computes on the host."""

    unsupported = ""
    # Seconds that each plan takes; one that takes for ever cannot be built.
    plans: dict[str, float] = {}

    def __init__(self, io_data_type, intermediate_data_type, compute_data_type, handle):
        assert (intermediate_data_type, compute_data_type, handle) == ("float32", "float32", 7)
        self.steps = []

    def tensor(self, name, dim, stride, data_type):
        return Tensor(name, dim, stride, data_type)

    def _make(self, what, inputs, padding, stride, dilation):
        self.what, self.inputs, self.output = what, inputs, Tensor()
        self.geometry = stride, padding, dilation
        return self.output

    def conv_fprop(self, image, weight, **options):
        return self._make("forward", (image, weight), **options)

    def conv_dgrad(self, loss, filter, **options):
        return self._make("data", (loss, filter), **options)

    def conv_wgrad(self, image, loss, **options):
        return self._make("weights", (image, loss), **options)

    def deselect_numeric_notes(self, notes):
        self.note(notes, ["NONDETERMINISTIC", "TENSOR_CORE", "DOWN_CONVERT_INPUTS"])

    def note(self, notes, expected):
        assert notes == expected
        self.steps.append("deselect_numeric_notes")

    def create_execution_plans(self, modes):
        assert modes == ["A", "FALLBACK"]
        self.steps.append("create_execution_plans")

    def check_support(self):
        self.steps.append("check_support")
        if self.what == self.unsupported:
            raise NotSupported("no plan can do this\nof all plans")

    def __getattr__(self, name):
        if name not in ("validate", "build_operation_graph", "build_plans"):
            raise AttributeError(name)
        return lambda: self.steps.append(name)

    def get_workspace_size(self):
        return 100

    def get_execution_plan_count(self):
        return len(self.plans)

    def get_plan_name_at_index(self, index):
        return list(self.plans)[index]

    def build_plan_at_index(self, index):
        if self.plans[self.get_plan_name_at_index(index)] == math.inf:
            raise NotSupported("this plan needs another device")
        self.built = index

    def get_workspace_size_plan_at_index(self, index):
        assert index == self.built
        return 100

    def execute_plan_at_index(self, pointers, workspace, index, handle):
        assert index == self.built
        name = self.get_plan_name_at_index(index)
        executed.append((self.what, name))
        clock.seconds += self.plans[name]
        self.execute(pointers, workspace, handle)

    def execute(self, pointers, workspace, handle):
        assert self.output.is_output
        assert self.steps == [
            "validate",
            "build_operation_graph",
            "create_execution_plans",
            "deselect_numeric_notes",
            "check_support",
            "build_plans",
        ]
        ctypes.memset(workspace, 0, 100)
        first, second = (each.array(pointers[each]) for each in self.inputs)
        result = self.output.array(pointers[self.output])
        x, w, _ = {
            "forward": (first, second, result),
            "data": (result, second, first),
            "weights": (first, result, second),
        }[self.what]
        stride, pad, dilation = map(tuple, self.geometry)
        group = x.shape[1] // w.shape[1]
        geometry = ConvolutionGeometry(w.shape[2:], stride, pad, dilation, group)
        with device.use(device.HOST):
            plan = Convolution(x.shape, w.shape, geometry, np.float64)
            wide = [each.astype(np.float64) for each in (first, second, result)]
            if self.what == "forward":
                plan.forward(wide[0], wide[1], None, wide[2])
            elif self.what == "data":
                plan.backward_data(wide[0], wide[1], wide[2])
            else:
                wide[2][...] = 0
                plan.backward_weights(wide[0], wide[1], wide[2])
            result[...] = wide[2]


def front_end(graph=Graph):
    streams = []
    return SimpleNamespace(
        pygraph=graph,
        data_type=SimpleNamespace(FLOAT="float32", HALF="float16", BFLOAT16="bfloat16"),
        heur_mode=SimpleNamespace(A="A", FALLBACK="FALLBACK"),
        numerical_note=SimpleNamespace(
            **{name: name for name in ("NONDETERMINISTIC", "TENSOR_CORE", "DOWN_CONVERT_INPUTS")}
        ),
        cudnnGraphNotSupportedError=NotSupported,
        create_handle=lambda: 7,
        backend_version=lambda: 91002,
        set_stream=lambda handle, stream: streams.append((handle, stream)),
        streams=streams,
    )


class Streaming(EmulatedGPU):
    """An emulated GPU that pretends to have CUDA."""

    def cuda_stream(self):
        return 0xABC


@pytest.fixture
def streaming():
    """A new GPU for each test, because each GPU looks for the library once."""
    if compiler() is None:
        pytest.skip("there is no C++ compiler for the emulated GPU")
    with device.use(Streaming()) as gpu:
        yield gpu


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
def test_graphs_compute_the_layers_convolution(name, streaming, monkeypatch):
    expected = compute(streaming, Convolution, SHAPES[name])
    module = front_end()
    monkeypatch.setitem(sys.modules, "cudnn", module)
    for found, wanted in zip(compute(streaming, LibraryConvolution, SHAPES[name]), expected):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert module.streams == [(7, 0xABC)] * 3


def test_what_cudnn_cannot_do_runs_on_our_own_kernels(streaming, monkeypatch, caplog):
    module = front_end(type("Failing", (Graph,), {"unsupported": "data"}))
    monkeypatch.setitem(sys.modules, "cudnn", module)
    with caplog.at_level(logging.INFO, "pcaffe"):
        found = compute(streaming, LibraryConvolution, SHAPES["plain"])
    for values, wanted in zip(found, compute(streaming, Convolution, SHAPES["plain"])):
        np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-5)
    assert len(module.streams) == 2
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


def test_other_errors_of_the_front_end_end_the_run(streaming, monkeypatch):
    def fail(self):
        raise AssertionError("a bug of the front end")

    module = front_end(type("Broken", (Graph,), {"check_support": fail}))
    monkeypatch.setitem(sys.modules, "cudnn", module)
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
def timing(streaming, monkeypatch, tmp_path):
    """A function that installs plans, and the GPU that times them."""
    monkeypatch.setattr(plans, "folder", lambda: tmp_path)
    monkeypatch.setattr(plans, "time", SimpleNamespace(perf_counter=lambda: clock.seconds))
    streaming.times_plans = True

    def install(plans):
        executed.clear()
        monkeypatch.setitem(sys.modules, "cudnn", front_end(type("G", (Graph,), {"plans": plans})))
        cudnn.library.cache_clear()
        return streaming

    yield install
    cudnn.library.cache_clear()


def ours_takes(monkeypatch, seconds):
    """Let our own kernels of the convolution by columns take so long."""
    for name in ("forward", "backward_data", "backward_weights"):
        method = getattr(convolution._ByColumns, name)

        def slow(*args, method=method):
            clock.seconds += seconds
            method(*args)

        monkeypatch.setattr(convolution._ByColumns, name, slow)


def test_the_fastest_plan_is_kept_for_later_runs(timing, monkeypatch):
    ours_takes(monkeypatch, 0.2)
    refused = {f"refused {number}": math.inf for number in range(10)}
    gpu = timing({**refused, "slow": 0.1, "fast": 0.0})
    found = compute(gpu, LibraryConvolution, SHAPES["plain"])
    for values, wanted in zip(found, compute(gpu, Convolution, SHAPES["plain"])):
        np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-5)
    # One call for a warm-up, three that are timed, and after all of them the real one.
    per_operation = [*["slow"] * 4, *["fast"] * 5]
    assert [name for what, name in executed if what == "weights"] == per_operation
    gpu = timing({"slow": 0.1, "refused": math.inf, "fast": 0.0})
    compute(gpu, LibraryConvolution, SHAPES["plain"])
    assert executed == [(what, "fast") for what in ("forward", "data", "weights")]
    kept = [json.loads(path.read_text()) for path in plans.folder().iterdir()]
    assert [each["plan"] for each in kept] == ["fast"] * 3
    assert {*kept[0]["seconds"]} == {"ours", "slow", "fast"}


def test_our_own_kernels_run_where_they_are_faster(timing):
    gpu = timing({"slow": 0.05})
    for name, shape in {**SHAPES, "one tap": POINTWISE, "one channel": ONE_CHANNEL}.items():
        executed.clear()
        found = compute(gpu, LibraryConvolution, shape)
        assert len(executed) == 12, name  # the timed calls
        for values, wanted in zip(found, compute(gpu, Convolution, shape)):
            np.testing.assert_array_equal(values, wanted)
    assert not gpu.fallbacks


@pytest.mark.parametrize("damage", ["", "{", '{"plan": "of another version"}'])
def test_a_kept_plan_that_cannot_be_used_is_timed_anew(timing, monkeypatch, damage):
    ours_takes(monkeypatch, 0.05)
    gpu = timing({"fast": 0.0})
    compute(gpu, LibraryConvolution, SHAPES["plain"])
    for path in plans.folder().iterdir():
        path.write_text(damage)
    timing({"fast": 0.0})
    compute(gpu, LibraryConvolution, SHAPES["plain"])
    assert len(executed) == 15
    assert {json.loads(path.read_text())["plan"] for path in plans.folder().iterdir()} == {"fast"}


def test_each_precision_has_its_own_choice(timing, monkeypatch):
    ours_takes(monkeypatch, 0.05)
    gpu = timing({"fast": 0.0})
    notes = [], ["NONDETERMINISTIC", "TENSOR_CORE", "DOWN_CONVERT_INPUTS"]
    for wanted in notes:
        gpu.tf32_convolutions = not wanted
        module = sys.modules["cudnn"]
        expected = wanted or ["NONDETERMINISTIC"]
        monkeypatch.setattr(
            module.pygraph,
            "deselect_numeric_notes",
            lambda self, found, e=expected: self.note(found, e),
        )
        compute(gpu, LibraryConvolution, SHAPES["plain"])
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
