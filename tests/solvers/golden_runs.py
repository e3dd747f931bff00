"""Caffe's own training runs: solvers, losses, weights and solver states."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pycaffe_dist.device import HOST
from pycaffe_dist.schema import text
from pycaffe_dist.solvers import Solver

GOLDEN = Path(__file__).parent.parent / "golden" / "solver"
CASES = sorted(path.stem.removeprefix("expected_") for path in GOLDEN.glob("expected_*.npz"))
STATES = sorted(path.name for path in GOLDEN.glob("*.solverstate*"))
ITERATIONS = 20


def make_solver(case: str, device=HOST) -> Solver:
    param = text.read_solver(f"solver_{case}.prototxt")
    # The snapshots of these runs are Caffe's, and must not be overwritten.
    param.ClearField("snapshot")
    return Solver(param, device=device)


def losses_of(solver: Solver, iterations: int) -> list[float]:
    losses = []
    for _ in range(iterations):
        solver.step(1)
        # With iter_size, Caffe's figures are from an iteration's last pass.
        losses.append(float(solver.net.blobs["loss"].data))
    return losses


def compare_weights(solver: Solver, expected) -> None:
    for parameter in solver.net.parameters:
        theirs = expected[f"param/{parameter.layer_name}/{parameter.index}"]
        np.testing.assert_allclose(parameter.blob.data, theirs, rtol=1e-3, atol=1e-5)


def check_run(case: str, device=HOST) -> None:
    """Train on ``device`` as Caffe did; the current folder is `GOLDEN`."""
    expected = np.load(f"expected_{case}.npz")
    solver = make_solver(case, device)
    solver.load_weights(["init.caffemodel"])
    np.testing.assert_allclose(losses_of(solver, ITERATIONS), expected["losses"], rtol=1e-3)
    compare_weights(solver, expected)


def check_resumed_run(state: str, device=HOST) -> None:
    """Resume from Caffe's snapshot of iteration 10; the current folder is `GOLDEN`."""
    case = state.partition("_iter_10")[0]
    expected = np.load(f"expected_{case}.npz")
    solver = make_solver(case, device)
    solver.restore(state)
    assert solver.iteration == 10
    # Ten iterations are a whole number of passes over the data: the next batch is the first one.
    losses = losses_of(solver, ITERATIONS - 10)
    np.testing.assert_allclose(losses, expected["losses"][10:], rtol=1e-3)
    compare_weights(solver, expected)
