"""The engine for real GPUs, gpu/real.py, over the stand-in for CuPy: the emulation's results."""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import golden_runs
import numpy as np
import pytest
import signatures

from pycaffe_dist import device
from pycaffe_dist.errors import DeviceError
from pycaffe_dist.gpu import finding
from pycaffe_dist.log import DETAIL
from pycaffe_dist.precision import bfloat16
from pycaffe_dist.schema import text
from pycaffe_dist.solvers import Solver

STAND_IN = Path(__file__).parent / "stand_in"
# What can be compared with the stand-in; cuBLAS is in CuPy, which requires pathfinder.
INSTALLED = [name for name in signatures.MODULES if find_spec(name.replace("cublas", "cupy"))]


@pytest.fixture
def on_real(stand_in):
    """The GPU of gpu/real.py as the current device."""
    with device.use(stand_in):
        yield stand_in


SHAPES = {
    "plain": ((5, 4), (4, 3), (5, 3)),
    "stack": ((2, 5, 4), (2, 4, 3), (2, 5, 3)),
    "one left factor": ((5, 4), (2, 4, 3), (2, 5, 3)),
    "nothing to add": ((5, 0), (0, 3), (5, 3)),
    "nothing": ((0, 4), (4, 3), (0, 3)),
}
TYPES = [("f4", "f4"), ("f8", "f8"), ("f2", "f2"), ("f2", "f4"), ("bfloat16", "f4")]


@pytest.mark.parametrize("scales", [(1.0, 0.0), (0.5, 2.0)], ids=str)
@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_products_are_the_emulations(name, types, scales, stand_in, gpu):
    rng = np.random.default_rng(0)
    factor, result = (bfloat16() if each == "bfloat16" else np.dtype(each) for each in types)
    for trans_a, trans_b in [(False, False), (True, False), (False, True)]:
        a, b, c = (rng.integers(-4, 5, shape).astype(float) for shape in SHAPES[name])
        a, b = (np.swapaxes(x, -1, -2) if t else x for x, t in ((a, trans_a), (b, trans_b)))
        hosts = [a.astype(factor), b.astype(factor), c.astype(result)]
        found = []
        for each in (stand_in, gpu):
            with device.use(each):
                arrays = [each.to_device(np.ascontiguousarray(host)) for host in hosts]
                each.gemm(*arrays, trans_a, trans_b, *scales, tf32=True)
                found.append(each.to_host(arrays[2]))
        np.testing.assert_array_equal(*found)


def test_a_failure_of_cublas_is_named(on_real, monkeypatch):
    a = on_real.zeros((3, 3), np.float32)
    monkeypatch.setattr(on_real, "_compute_type", lambda dtype, tf32: 70)  # of float64
    with pytest.raises(DeviceError, match=r"^cublasGemmEx failed with status 15$"):
        on_real.gemm(a, a, on_real.zeros((3, 3), np.float32))


def test_a_missing_cublas_is_an_error(on_real, monkeypatch):
    cublas = sys.modules["pycaffe_dist.gpu.cublas"]
    monkeypatch.setattr(cublas.runtime, "runtimeGetVersion", lambda: 99000)
    with pytest.raises(DeviceError, match=r"cuBLAS cannot be loaded: libcublas\.so\.99"):
        cublas.Cublas("75")


@pytest.mark.parametrize("case", ["sgd", "adam"])
def test_training_is_captured_and_gives_the_emulations_bits(
    case, stand_in, front_end, gpu, monkeypatch, caplog
):
    monkeypatch.chdir(golden_runs.GOLDEN)
    monkeypatch.setitem(sys.modules, "cudnn", None)  # its stand-in rounds otherwise
    found = []
    for each in (stand_in, gpu):
        monkeypatch.setattr(each, "most_blocks", 8)
        with caplog.at_level(DETAIL, "pcaffe"):
            solver = golden_runs.make_solver(case, each)
            solver.load_weights(["init.caffemodel"])
            losses = golden_runs.losses_of(solver, 8)
        captured = [record.getMessage() for record in caplog.records if "graph" in record.msg]
        assert len(captured) >= 2, captured
        assert all(line.endswith("captured") for line in captured), captured
        caplog.clear()
        found.append([losses, *(p.blob.read_data().copy() for p in solver.net.parameters)])
        solver.close()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_float16_trains_with_cudnn_in_graphs(stand_in, front_end, monkeypatch, caplog):
    monkeypatch.chdir(golden_runs.GOLDEN)
    param = text.read_solver("solver_sgd.prototxt")
    param.ClearField("snapshot")
    param.data_type = "float16"
    with caplog.at_level(DETAIL, "pcaffe"):
        solver = Solver(param, device=stand_in)
        solver.load_weights(["init.caffemodel"])
        losses = golden_runs.losses_of(solver, 6)
    solver.close()
    assert front_end.streams
    assert any(record.getMessage().endswith("update captured") for record in caplog.records)
    np.testing.assert_allclose(losses, np.load("expected_sgd.npz")["losses"][:6], rtol=0.02)


def test_a_capture_that_fails_leaves_the_gpu_usable(on_real):
    x, memory = on_real.zeros(3, np.float32), on_real.graph_memory()
    with pytest.raises(RuntimeError, match="not pinned"):
        on_real.capture(memory, lambda: on_real.copy_to_host(x, np.empty(3, np.float32)))
    with pytest.raises(DeviceError, match="the host waits while a graph is captured"):
        on_real.capture(memory, on_real.synchronize_stream)
    with pytest.raises(DeviceError, match="bytes are allocated while a graph is captured"):
        on_real.capture(memory, lambda: on_real.empty(3, np.float32))
    graph = on_real.capture(memory, lambda: x.fill(2))
    assert on_real.to_host(x).tolist() == [0] * 3
    graph.launch()
    assert on_real.to_host(x).tolist() == [2] * 3


def test_a_graphs_memory_lives_as_long_as_the_graph(on_real):
    memory = on_real.graph_memory()
    gc.collect()
    before = on_real.memory().held
    with on_real.allocating_from(memory):
        array = on_real.zeros(100, np.float32)
    used, held = on_real.memory()[:2]
    assert 400 <= used <= held - before
    graph = on_real.capture(memory, functools.partial(array.fill, 1))
    del memory
    graph.launch()
    assert on_real.to_host(array).tolist() == [1] * 100
    del graph
    gc.collect()
    assert on_real.memory().held == before


def test_each_thread_and_gpu_has_its_stream(stand_in):
    other, found = type(stand_in)(1), []

    def work():
        with device.use(stand_in):
            outer = stand_in.cuda_stream()
            with stand_in.stream("copy"):
                event = stand_in.record()
                copying = stand_in.cuda_stream()
                with device.use(other):
                    found.append(len({outer, copying, other.cuda_stream()}))
                found.append(stand_in.cuda_stream() == copying)
            stand_in.wait(event)
            stand_in.synchronize_event(event)
            found.append(stand_in.is_reached(event))
            found.append(stand_in.cuda_stream() == outer)
        stand_in.synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [3, True, True, True]
    assert other.identity != stand_in.identity


def test_what_it_says_about_itself(stand_in, monkeypatch):
    monkeypatch.delenv(finding.EMULATE, raising=False)
    assert finding.count.__wrapped__() == 2
    assert stand_in.name == "stand-in 0"
    assert stand_in.capability == "90"
    assert stand_in.libraries() == [
        *("CuPy 14.2.0", "CUDA driver 13.2", "CUDA runtime 13.2", "NCCL 2.25.1"),
        "cuDNN 91002 (front end 1.26.0)",
    ]
    assert stand_in.mpi_refusal(True) == ""
    assert "CUDA-aware" in stand_in.mpi_refusal(False)
    assert stand_in.memory().total == 4 << 30
    monkeypatch.setattr(stand_in.nccl(), "available", False)
    with pytest.raises(DeviceError, match="CuPy finds no NCCL"):
        stand_in.nccl()


def test_the_stand_in_has_the_names_and_arguments_of_the_packages(tmp_path):
    """Compares the installed packages; needs no GPU."""
    if not INSTALLED:
        pytest.skip("neither CuPy nor cuDNN's front end is installed")
    python = [sys.executable, signatures.__file__]
    path = os.pathsep.join([str(STAND_IN), *sys.path])
    found = subprocess.run(python, env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    names = json.loads(found.stdout)
    for package in INSTALLED:
        (tmp_path / package).write_text(json.dumps(names[package]))
        done = subprocess.run([*python, tmp_path / package], capture_output=True, text=True)
        if package == "cublas" and "ImportError: " in done.stderr:
            continue  # CuPy is installed, but CUDA's libraries are not
        assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr
