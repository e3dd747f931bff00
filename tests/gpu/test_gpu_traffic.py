"""What a training iteration gives a GPU to do, counted in a dry run: launches, calls, bytes."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pycaffe_dist import device
from pycaffe_dist.gpu.emulated import EmulatedGPU, compiler
from pycaffe_dist.gpu.trace import DryGPU, Traced
from pycaffe_dist.kernels.activation import relu_forward
from pycaffe_dist.kernels.bias_add import add_bias
from pycaffe_dist.kernels.columns import put_columns
from pycaffe_dist.kernels.gemm import gemm

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

# The most launches and calls, and the most gigabytes, with cuDNN and without.
BOUNDS = {
    "LeNet": (35, 0.047, 40, 0.10),
    "CIFAR-10 quick": (43, 0.20, 55, 0.98),
    "CaffeNet": (71, 11.0, 213, 38.0),
    "GoogLeNet": (575, 38.0, 725, 64.0),
    "VGG-16": (119, 43.7, 717, 177.0),
    "ResNet-50": (578, 111.0, 801, 160.0),
}
LARGE = "CaffeNet", "GoogLeNet", "VGG-16"


class TracedGPU(Traced, EmulatedGPU):
    """An emulated GPU with a trace."""


@pytest.fixture
def traced():
    if compiler() is None:
        pytest.skip("there is no C++ compiler for the emulated GPU")
    gpu = TracedGPU()
    with device.use(gpu):
        yield gpu


def trace(name, monkeypatch, has_cudnn):
    from gpu_traffic import pretend_cudnn, trace

    monkeypatch.setitem(sys.modules, "cudnn", None)
    if has_cudnn:
        pretend_cudnn()
    return trace(name, DryGPU(has_cudnn))


@pytest.mark.parametrize("has_cudnn", [True, False])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n in LARGE)) for n in BOUNDS]
)
def test_an_iteration_stays_within_its_bounds(name, has_cudnn, monkeypatch):
    launches, gigabytes = BOUNDS[name][:2] if has_cudnn else BOUNDS[name][2:]
    work = trace(name, monkeypatch, has_cudnn)
    counts = Counter(each.kind for each in work)
    assert (counts["library"] > 0) == has_cudnn
    assert launches * 0.9 < len(work) - counts["copy"] <= launches, Counter(work).most_common(20)
    assert gigabytes * 0.9 < sum(each.nbytes for each in work) / 1e9 <= gigabytes
    # The loss is set on the GPU, and no diff is set to zero.
    assert counts["array"] <= 3


def test_a_kernel_counts_what_it_reads_and_writes(traced):
    x, y = (traced.zeros((2, 3, 8), np.float32) for _ in range(2))
    b = traced.zeros(3, np.float32)
    relu_forward(x, y, 0.0)
    add_bias(y, b)
    put_columns(traced.zeros((2, 4), np.float32), traced.zeros((2, 400), np.float32), 4)
    gemm(x[0], x[1], traced.zeros((3, 3), np.float32), trans_b=True, beta=1.0)
    y += x
    found = [each for each in traced.work if each.name != "to the GPU"]
    assert [each.name for each in found] == [
        *("relu_forward", "add_bias", "copy_wide_columns", "gemm", "add"),
    ]
    each = x.nbytes
    expected = [2 * each, 2 * each + b.nbytes, 2 * 32, each + 2 * 36, 3 * each]
    assert [one.nbytes for one in found] == expected


def test_a_dry_run_does_nothing(monkeypatch):
    gpu = DryGPU()
    with device.use(gpu):
        x, y = gpu.zeros(5, np.float32), gpu.zeros(5, np.float32)
        x.fill(3)
        relu_forward(x, y, 0.0)
        assert gpu.to_host(y).shape == (5,)
    assert not y.inner.any()
    assert [each.kind for each in gpu.work] == ["array", "kernel", "copy"]
