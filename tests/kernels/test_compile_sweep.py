"""Compiles microkernels for many processors, to see that LLVM survives; it runs none of them.

``make sweep`` runs it; PCAFFE_SWEEP is the number of random geometries.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import test_kernels_convolution
import test_kernels_pooling

from pycaffe_dist.kernels import dry_run, pooling
from pycaffe_dist.kernels.convolution import Convolution
from pycaffe_dist.kernels.dry_run import Needs
from pycaffe_dist.kernels.inner_product import InnerProduct
from pycaffe_dist.kernels.jit.codegen import objects
from pycaffe_dist.kernels.jit.codegen import target as targets
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.workers import WorkerDied, run_all
from pycaffe_dist.net import Net, precompile
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.reports.sources import without_sources
from pycaffe_dist.schema import caffe_pb2, text

pytestmark = pytest.mark.long

GEOMETRIES = int(os.environ.get("PCAFFE_SWEEP", "2000"))
MODELS = Path(__file__).resolve().parents[2] / "models"
NETS = ("bvlc_googlenet", "bvlc_reference_caffenet", "mobilenet_v1", "nin_imagenet", "resnet152")
NETS += ("squeezenet_v1.1", "vgg16")
X86, ARM, APPLE = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "arm64-apple-darwin"
PROCESSORS = {
    "x86-64": Target("sse", 4, 16, False, "x86-64", "", X86),
    "haswell": Target("avx2", 8, 16, True, "haswell", "", X86),
    "skylake-avx512": Target("avx512", 16, 32, True, "skylake-avx512", "", X86),
    "sapphirerapids": Target("avx512", 16, 32, True, "sapphirerapids", "", X86),
    "znver3": Target("avx2", 8, 16, True, "znver3", "", X86),
    "znver4": Target("avx512", 16, 32, True, "znver4", "", X86),
    "znver5": Target("avx512", 16, 32, True, "znver5", "", X86),
    "neoverse-n1": Target("sse", 4, 32, True, "neoverse-n1", "", ARM),
    "apple-m1": Target("sse", 4, 32, True, "apple-m1", "", APPLE),
}


def zeros(*shapes):
    return [np.zeros(shape, np.float32) for shape in shapes]


def convolve(x_shape, outputs, case):
    w_shape = outputs, x_shape[1] // case.group, *case.kernel
    plan = Convolution(x_shape, w_shape, case)
    x, w, b, y = zeros(x_shape, w_shape, (outputs,), plan.y_shape)
    plan.forward(x, w, b, y)
    plan.backward_data(y, w, x)
    plan.backward_weights(x, y, w)


def pool(shape, case):
    x, y = zeros(shape, (*shape[:2], *case.output_shape(shape[2:])))
    mask = np.zeros(y.shape, np.int32)
    pooling.max_pool_forward(x, y, mask, case)
    pooling.average_pool_forward(x, y, case)
    pooling.average_pool_backward(y, x, case)


def multiply(m, n, k, transposed):
    plan = InnerProduct(m, n, k, transposed)
    x, y, w, b = zeros((m, k), (m, n), (k, n) if transposed else (n, k), (n,))
    plan.forward(x, w, b, y)
    plan.backward_data(y, w, x)
    plan.backward_weights(x, y, w)


def run_model(path):
    param = text.read_net(MODELS / path / "train_val.prototxt")
    for layer in param.layer:
        if layer.HasField("data_param"):
            layer.data_param.batch_size = 4
    net = Net(without_sources(with_state(param, caffe_pb2.TRAIN), None))
    precompile.find_needs(net, dry_run.active())
    net.close()


def specifications(unit, monkeypatch):
    """Return all specifications of the cases, models and random geometries."""
    monkeypatch.setattr(targets, "_target", lambda level: unit)
    monkeypatch.setattr(targets, "host_levels", lambda: (unit.level, "none"))
    monkeypatch.delenv("PCAFFE_SIMD", raising=False)
    needs = Needs()
    with dry_run.noting(needs):
        for case in test_kernels_convolution.CASES.values():
            convolve(*case)
        for seed in range(GEOMETRIES):
            convolve(*test_kernels_convolution.random_case(seed))
        for case in test_kernels_pooling.CASES.values():
            pool(*case)
        for sizes in np.random.default_rng(0).integers(1, 200, (50, 3)).tolist():
            multiply(*sizes, False)
            multiply(*sizes, True)
        for path in NETS:
            run_model(path)
    return [spec for spec, made_for in needs.microkernels if made_for == unit]


@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_specification_compiles(processor, monkeypatch, capsys):
    unit = PROCESSORS[processor]
    specs = specifications(unit, monkeypatch)
    died: list[str] = []

    def task(worker, spec):
        try:
            assert worker.run(objects.compile_here, spec, unit, unit)
        except WorkerDied as error:
            died.append(f"{spec}: {error}")

    groups = [[lambda worker, spec=spec: task(worker, spec)] for spec in specs]
    errors: list[Exception] = []
    run_all(groups, lambda error: errors.append(error) if error else None)
    with capsys.disabled():
        print(f"\n{processor}: {len(specs)} specifications, {len(died)} end the compiler")
    assert not errors
    assert not died, "\n".join(died[:20])
    assert len(specs) > 100
