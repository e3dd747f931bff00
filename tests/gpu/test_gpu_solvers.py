"""Caffe's own training runs on a GPU: losses, weights and solver states."""

from __future__ import annotations

import golden_runs
import numpy as np
import pytest
from tiny import tiny_solver

from pycaffe_dist.snapshot.caffemodel import load_weights
from pycaffe_dist.training import trial

METHODS = ("adadelta", "adagrad", "adam", "nesterov", "rmsprop", "sgd", "sgd_iter_size")


@pytest.fixture(autouse=True)
def in_golden_folder(monkeypatch):
    monkeypatch.chdir(golden_runs.GOLDEN)


@pytest.mark.parametrize("case", [*METHODS, "sgd_step_clip", "sgd_inv_l1"])
def test_losses_and_weights(case, gpu):
    golden_runs.check_run(case, gpu)


@pytest.mark.parametrize("state", ["adam_iter_10.solverstate", "sgd_iter_10.solverstate.h5"])
def test_caffes_snapshots_resume(state, gpu):
    golden_runs.check_resumed_run(state, gpu)


@pytest.mark.parametrize("method", ["AdamW", "Lion"])
def test_decoupled_decay_and_means_equal_the_cpus(method, gpu, tmp_path):
    """Also after a snapshot, and in the weights of the best test."""
    fields = (
        f"type: '{method}' weight_decay: 0.1 averaging: 'EMA' averaging_decay: 0.6 max_iter: 6 "
        "test_iter: 1 test_interval: 6 test_initialization: false best_output: 'loss'"
    )
    found = {}
    for device in (None, gpu):
        folder = tmp_path / str(device is gpu)
        folder.mkdir()
        first = tiny_solver(folder, fields, device=device)
        first.step(3)
        state = first.snapshot().replace("caffemodel", "solverstate")
        solver = tiny_solver(folder, fields, device=device)
        solver.restore(state)
        solver.solve()
        solver.close()
        weights = [blob.read_data() for layer in solver.net.layers for blob in layer.blobs]
        best = load_weights(folder / "tiny_best.caffemodel")
        found[device] = weights + [blob for layer in best for blob in layer.blobs]
    assert len(found[gpu]) == 4
    for mine, theirs in zip(found[gpu], found[None], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_a_check_tells_the_memory_of_the_gpu(gpu, tmp_path):
    solver = tiny_solver(tmp_path, "test_iter: 2 test_interval: 3", device=gpu)
    solver.param.snapshot_prefix = f"{tmp_path}/check"
    found = trial.run(solver, "", f"{tmp_path}/tiny")
    assert found.gpu_memory is not None and "\nGPU memory  " in found.table()
