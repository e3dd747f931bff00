"""Error messages about GPUs that cannot be used."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pycaffe_dist import device
from pycaffe_dist.errors import DeviceError
from pycaffe_dist.gpu import finding
from pycaffe_dist.kernels.convolution import ConvolutionGeometry
from pycaffe_dist.kernels.cuda.convolution import Convolution
from pycaffe_dist.kernels.cuda.gemm import gemm


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("cudaErrorDevicesUnavailable: busy\nor unavailable"), "GPU 0 cannot be used"),
        (ImportError("libcublas.so.12: not found"), "CUDA's libraries cannot be loaded"),
    ],
)
def test_the_error_has_the_first_line_of_the_reason(monkeypatch, error, words):
    def open_it(index):
        raise error

    monkeypatch.delenv(finding.EMULATE, raising=False)
    monkeypatch.setattr(finding, "count", lambda: 1)
    monkeypatch.setitem(sys.modules, "pycaffe_dist.gpu.real", SimpleNamespace(RealGPU=open_it))
    with pytest.raises(DeviceError) as found:
        finding.open_gpu.__wrapped__(0)
    assert str(found.value) == f"{words}: {str(error).splitlines()[0]}"


@pytest.mark.parametrize(
    ("choice", "convolutions", "products"),
    [("", False, False), ("convolutions", True, False), ("all", True, True)],
)
def test_float32_rounds_to_tf32_only_on_request(monkeypatch, choice, convolutions, products):
    monkeypatch.setenv(finding.EMULATE, "1")
    monkeypatch.setenv(finding.TF32, choice)
    monkeypatch.setattr(finding, "count", lambda: 1)  # it remembers
    gpu = finding.open_gpu.__wrapped__(0)
    asked = []
    monkeypatch.setattr(gpu, "gemm", lambda *args: asked.append(args[-1]))
    with device.use(gpu):
        x, w = gpu.zeros((2, 3, 4, 4), np.float32), gpu.zeros((5, 3, 3, 3), np.float32)
        geometry = ConvolutionGeometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
        y = gpu.zeros((2, 5, 4, 4), np.float32)
        Convolution(x.shape, w.shape, geometry).forward(x, w, None, y)
        gemm(gpu.zeros((2, 2), np.float32), gpu.zeros((2, 2), np.float32), gpu.zeros((2, 2), "f4"))
    assert asked == [convolutions, products]


@pytest.mark.parametrize(("choice", "times"), [("", True), ("timed", True), ("first", False)])
def test_plans_are_timed_unless_the_first_is_asked_for(monkeypatch, choice, times):
    monkeypatch.setenv(finding.EMULATE, "1")
    monkeypatch.setenv(finding.PLANS, choice)
    monkeypatch.setattr(finding, "count", lambda: 1)
    assert finding.open_gpu.__wrapped__(0).times_plans == times


@pytest.mark.parametrize(
    ("variable", "words"),
    [(finding.TF32, "none, convolutions, all"), (finding.PLANS, "timed, first")],
)
def test_an_unknown_choice(monkeypatch, variable, words):
    monkeypatch.setenv(finding.EMULATE, "1")
    monkeypatch.setenv(variable, "1")
    with pytest.raises(DeviceError, match=f"{variable} must be one of {words}, found '1'"):
        finding.open_gpu.__wrapped__(0)
