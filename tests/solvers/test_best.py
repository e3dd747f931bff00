"""The best test of a run: its weights' file, and the end of runs without new best ones."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from tiny import tiny_solver

from pycaffe_dist.errors import UsageError
from pycaffe_dist.snapshot.caffemodel import load_weights

TEST = "test_iter: 2 test_interval: 2 max_iter: 20 snapshot_after_train: false"


def steered(solver, values: list[float]) -> dict[int, np.ndarray]:
    """Let the solver's tests give these values; return the weights of each iteration's test."""
    given, weights = iter(values), {}
    best = solver.state.best

    def read(found):
        assert len(found["loss"]) == 1
        weights[solver.iteration] = solver.test_nets[0].layers[2].blobs[0].data.copy()
        return next(given)

    best.read = read
    return weights


def best_weights(folder) -> np.ndarray:
    layers = {layer.name: layer for layer in load_weights(folder / "tiny_best.caffemodel")}
    return layers["ip"].blobs[0]


@pytest.mark.parametrize(
    ("fields", "values", "best"),
    [
        ("", [5, 4, 3, 4, 5, 6, 3, 4, 9, 9, 9], 4),
        ("best_is: 'max'", [5, 4, 3, 4, 5, 6, 3, 4, 5, 5, 5], 10),
        ("averaging: 'EMA'", [5, 4, 4, 3, 7, float("nan"), 9, 9, 9, 9, 9], 6),
        ("", [float("nan"), 4, *[float("nan")] * 9], 2),
    ],
)
def test_the_weights_of_the_best_test_are_kept(tmp_path, fields, values, best):
    solver = tiny_solver(tmp_path, f"{TEST} best_output: 'loss' {fields}")
    weights = steered(solver, values)
    solver.solve()
    solver.close()
    assert (solver.iteration, len(weights)) == (20, 11)
    np.testing.assert_array_equal(best_weights(tmp_path), weights[best])


def test_a_real_loss_is_followed(tmp_path, caplog):
    solver = tiny_solver(tmp_path, f"{TEST} best_output: 'loss'")
    with caplog.at_level(logging.INFO, "pcaffe"):
        solver.solve()
    tested = [
        float(r.getMessage().split(" = ")[1].split()[0])
        for r in caplog.records
        if "Test net output" in r.getMessage()
    ]
    assert len(tested) == 11
    assert solver.state.best.state()["value"] == pytest.approx(min(tested), rel=1e-4)
    assert solver.state.best.state()["iteration"] == 2 * tested.index(min(tested))


def test_patience_ends_the_run_with_a_snapshot(tmp_path, caplog):
    fields = TEST.replace("false", "true")
    solver = tiny_solver(tmp_path, f"{fields} best_output: 'loss' patience: 3")
    steered(solver, [5, 4, 3, 4, 3, 4])
    with caplog.at_level(logging.INFO, "pcaffe"):
        solver.solve()
    solver.close()
    assert (solver.iteration, solver.stopping) == (10, True)
    assert "Stopping: no new best loss in 3 tests (3, iteration 4)" in caplog.text
    assert (tmp_path / "tiny_iter_10.solverstate").exists()


def test_a_resumed_run_knows_the_best_test(tmp_path):
    fields = f"{TEST} best_output: 'loss' patience: 3"
    first = tiny_solver(tmp_path, fields)
    steered(first, [5, 3, 4])
    first.step(5)
    state = first.snapshot().replace("caffemodel", "solverstate")
    again = tiny_solver(tmp_path, fields)
    again.restore(state)
    steered(again, [3, 4])
    again.solve()
    assert (again.iteration, again.stopping) == (8, True)


def test_a_file_that_cannot_be_written_costs_one_line(tmp_path, caplog):
    (tmp_path / "tiny_best.caffemodel").mkdir()
    solver = tiny_solver(tmp_path, f"{TEST} best_output: 'loss'")
    steered(solver, [1] * 11)
    solver.solve()
    assert solver.iteration == 20
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "The best weights are not kept" in line and "training goes on" in line


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (f"{TEST} best_output: 'los'", "no test net has an output 'los'; did you mean 'loss'"),
        (
            f"{TEST} best_output: 'x'",
            "no test net has an output 'x'; the test nets' outputs are: l",
        ),
        ("best_output: 'loss'", "no test net has an output 'loss'; .* outputs are: none"),
        ("patience: 3", "patience and best_is need a best_output"),
        (f"{TEST} best_output: 'loss' patience: -1", "patience must be at least 0, found -1"),
        (f"{TEST} best_output: 'loss' best_is: 'least'", "unknown best_is 'least'; known are max"),
    ],
)
def test_wrong_fields_are_refused(tmp_path, fields, message):
    with pytest.raises(UsageError, match=message):
        tiny_solver(tmp_path, fields)
