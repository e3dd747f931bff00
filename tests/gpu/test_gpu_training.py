"""Training from the command line on emulated GPUs, on one rank and on two."""

from __future__ import annotations

import re

import numpy as np
import pytest
from digits import DATA, SOLVER, write_digits
from kept_jobs import run_pcaffe
from running import run

from pycaffe_dist.gpu.emulated import compiler
from pycaffe_dist.snapshot.caffemodel import load_weights

NET = (
    DATA
    + """
layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
  convolution_param { num_output: 4 kernel_size: 5 stride: 2 weight_filler { type: 'xavier' } } }
layer { name: 'pool' type: 'Pooling' bottom: 'conv' top: 'pool'
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: 'relu' type: 'ReLU' bottom: 'pool' top: 'pool' }
layer { name: 'drop' type: 'Dropout' bottom: 'pool' top: 'pool' }
layer { name: 'ip' type: 'InnerProduct' bottom: 'pool' top: 'ip'
  inner_product_param { num_output: 10 weight_filler { type: 'xavier' } } }
layer { name: 'accuracy' type: 'Accuracy' bottom: 'ip' bottom: 'label' top: 'accuracy'
  include { phase: TEST } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 'label' top: 'loss' }
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if compiler() is None:
        pytest.skip("there is no C++ compiler for the emulated GPU")
    folder = tmp_path_factory.mktemp("gpu")
    write_digits(folder, 300)
    (folder / "net.prototxt").write_text(NET % 6)
    return folder


@pytest.fixture(scope="module", autouse=True)
def emulated():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PCAFFE_EMULATE_GPU", "2")
        yield


def train(folder, ranks, name, *flags, iterations=6, resume=""):
    """Train, test and snapshot; return the displayed losses, and the weights."""
    prefix = folder / name
    text = SOLVER % (folder / "net.prototxt", iterations, prefix)
    text += " snapshot: 3 test_iter: 2 test_interval: 3"
    (folder / f"{name}.prototxt").write_text(text)
    arguments = ["train", f"--solver={name}.prototxt", *flags]
    process = "with emulated GPUs"
    if resume:
        arguments.append(f"--snapshot={resume}")
        process += ", resumed"
    log = run_pcaffe(ranks, arguments, folder, process)
    losses = [float(x) for x in re.findall(r"Iteration \d+ .*, loss = (\S+)", log)]
    return log, losses, load_weights(f"{prefix}_iter_{iterations}.caffemodel")


def compare(found, expected):
    for one, other in zip(found, expected):
        for mine, theirs in zip(one.blobs, other.blobs):
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-6)


def test_a_gpu_trains_as_the_cpu_does_and_resumes_exactly(folder):
    log, losses, weights = train(folder, 1, "gpu", "--gpu=0")
    assert "Using GPU 0: emulated GPU" in log
    _, expected, on_cpu = train(folder, 1, "cpu")
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    compare(weights, on_cpu)
    _, rest, again = train(folder, 1, "again", "--gpu=0", resume=folder / "gpu_iter_3.solverstate")
    assert rest == losses[3:]
    for one, other in zip(again, weights):
        for mine, theirs in zip(one.blobs, other.blobs):
            np.testing.assert_array_equal(mine, theirs)


@pytest.fixture(scope="module")
def on_two_cpus(folder):
    return train(folder, 2, "two_cpus", "--exchange=allreduce")


@pytest.mark.parametrize(
    "exchange", ["sufficient_factor", "nccl", pytest.param("cuda_mpi", marks=pytest.mark.long)]
)
def test_two_ranks_take_a_gpu_each(folder, on_two_cpus, exchange):
    flags = f"--exchange={exchange}", "--overlap=forward"
    log, losses, weights = train(folder, 2, exchange, "--gpu=all", *flags)
    assert "Using GPU 0" in log
    # With "sufficient_factor" some parameters must use "allreduce".
    assert re.search(rf"^ *conv\[0\].* (allreduce|{exchange}) .*$", log, re.MULTILINE)
    _, expected, on_cpu = on_two_cpus
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    compare(weights, on_cpu)


def test_solver_mode_gpu_is_only_a_wish_but_a_flag_is_not(folder, monkeypatch):
    monkeypatch.delenv("PCAFFE_EMULATE_GPU")
    monkeypatch.setenv("PYTHONPATH", str(folder / "without_cupy"))
    (folder / "without_cupy").mkdir(exist_ok=True)
    (folder / "without_cupy" / "cupy.py").write_text("raise ImportError('no CUDA here')")
    text = (SOLVER % (folder / "net.prototxt", 1, folder / "wish")).replace(
        "mode: CPU", "mode: GPU"
    )
    (folder / "wish.prototxt").write_text(text)
    train = ["pcaffe", "train", "--solver=wish.prototxt"]
    log = run(train, folder)
    assert "solver_mode is GPU, but the run is on the CPU: CuPy cannot be used: no CUDA here" in log
    log = run([*train, "--gpu=0"], folder, expect_failure=True)
    assert log.rstrip().endswith("--gpu=0: CuPy cannot be used: no CUDA here")
