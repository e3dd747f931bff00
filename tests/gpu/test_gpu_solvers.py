"""Caffe's own training runs on a GPU: losses, weights and solver states."""

from __future__ import annotations

import golden_runs
import pytest

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
