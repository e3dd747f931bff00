"""Every solver method and policy against Caffe's own losses, weights and solver states."""

import golden_runs
import pytest


@pytest.fixture(autouse=True)
def in_golden_folder(monkeypatch):
    monkeypatch.chdir(golden_runs.GOLDEN)


@pytest.mark.parametrize("case", golden_runs.CASES)
def test_losses_and_weights(case):
    golden_runs.check_run(case)


@pytest.mark.parametrize("state", golden_runs.STATES)
def test_caffes_snapshots_resume(state):
    """Iterations 11 to 20 from Caffe's own snapshot, binary or HDF5, are Caffe's."""
    golden_runs.check_resumed_run(state)
