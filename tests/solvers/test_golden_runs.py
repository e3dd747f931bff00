"""Every solver method and policy against Caffe's own losses, weights and solver states."""

from pathlib import Path

import numpy as np
import pytest

from pycaffe_dist.schema import text
from pycaffe_dist.solvers import Solver

GOLDEN = Path(__file__).parent.parent / "golden" / "solver"
CASES = sorted(path.stem.removeprefix("expected_") for path in GOLDEN.glob("expected_*.npz"))
STATES = sorted(path.name for path in GOLDEN.glob("*.solverstate*"))
ITERATIONS = 20


@pytest.fixture(autouse=True)
def in_golden_folder(monkeypatch):
    monkeypatch.chdir(GOLDEN)


def make_solver(case: str, **changes) -> Solver:
    param = text.read_solver(f"solver_{case}.prototxt")
    # The snapshots of these runs are Caffe's, and stay so.
    param.ClearField("snapshot")
    for field, value in changes.items():
        setattr(param, field, value)
    return Solver(param)


def losses_of(solver: Solver, iterations: int) -> list[float]:
    losses = []
    for _ in range(iterations):
        solver.step(1)
        # With iter_size, Caffe's figures are those of an iteration's last pass.
        losses.append(float(solver.net.blobs["loss"].data))
    return losses


def compare_weights(solver: Solver, expected) -> None:
    for parameter in solver.net.parameters:
        theirs = expected[f"param/{parameter.layer_name}/{parameter.index}"]
        np.testing.assert_allclose(parameter.blob.data, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_losses_and_weights(case):
    expected = np.load(f"expected_{case}.npz")
    solver = make_solver(case)
    solver.load_weights(["init.caffemodel"])
    np.testing.assert_allclose(losses_of(solver, ITERATIONS), expected["losses"], rtol=1e-3)
    compare_weights(solver, expected)


@pytest.mark.parametrize("state", STATES)
def test_caffes_snapshots_resume(state):
    """Iterations 11 to 20 from Caffe's own snapshot, binary or HDF5, are Caffe's."""
    case = state.partition("_iter_10")[0]
    expected = np.load(f"expected_{case}.npz")
    solver = make_solver(case)
    solver.restore(state)
    assert solver.iteration == 10
    # Ten iterations are a whole number of passes over the data: the next batch is the first one.
    losses = losses_of(solver, ITERATIONS - 10)
    np.testing.assert_allclose(losses, expected["losses"][10:], rtol=1e-3)
    compare_weights(solver, expected)
