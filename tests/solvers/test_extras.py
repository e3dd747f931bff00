"""Features beyond Caffe's solver: LARS, LARC, max_time, global batches, checks for NaN."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from tiny import tiny_solver

from pycaffe_dist.config import Action
from pycaffe_dist.errors import NumericError, UsageError
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers.checkpoint import CheckpointKeeper
from pycaffe_dist.solvers.nets import divide_batches

RATE = 0.05


def first_step(tmp_path, fields: str) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return weights before the first update, their gradient and their change, by parameter."""
    solver = tiny_solver(tmp_path, f"momentum: 0 weight_decay: 0.1 iter_size: 2 {fields}")
    seen = {}
    apply = solver._apply_update

    def note_and_apply(display):
        for parameter in solver.net.parameters:
            parameter.blob.data[...] += 0.01
            gradient = parameter.blob.diff / 2
            seen[parameter.key] = (parameter.blob.data.copy(), gradient.copy())
        apply(display)

    solver._apply_update = note_and_apply
    solver.step(1)
    return {
        parameter.key: (*seen[parameter.key], seen[parameter.key][0] - parameter.blob.data)
        for parameter in solver.net.parameters
    }


@pytest.mark.parametrize("policy", ["", "scale", "clip"])
@pytest.mark.parametrize("eta", [0.02, 20])
def test_larc_sets_a_parameters_rate_by_its_norms(tmp_path, policy, eta):
    fields = f"larc_policy: '{policy}' larc_eta: {eta}"
    for key, (weights, gradient, change) in first_step(tmp_path, fields).items():
        norms = np.linalg.norm(weights), np.linalg.norm(gradient)
        trust = eta * norms[0] / (norms[1] + 0.1 * norms[0])
        rate = RATE
        if key == "ip[0]":
            rate = {"": RATE, "scale": RATE * trust, "clip": min(RATE, trust)}[policy]
        expected = rate * (gradient + 0.1 * weights)
        np.testing.assert_allclose(change, expected, rtol=1e-3, atol=1e-6, err_msg=key)


def test_an_unknown_larc_policy_is_refused(tmp_path):
    with pytest.raises(UsageError, match="unknown larc_policy 'clop'"):
        tiny_solver(tmp_path, "larc_policy: 'clop'")


def test_max_time_ends_a_run_with_a_snapshot(tmp_path):
    solver = tiny_solver(tmp_path, "max_time: 1e-6 snapshot_after_train: false")
    solver.solve()
    assert (solver.iteration, solver.stopping) == (1, True)
    assert (tmp_path / "tiny_iter_1.solverstate").exists()


def test_max_time_counts_from_the_start_of_a_run_that_has_lost_ranks(tmp_path):
    solver = tiny_solver(tmp_path, "max_time: 60")
    keeper = CheckpointKeeper(solver)
    solver.step(1)
    solver.state.began -= 120
    other = tiny_solver(tmp_path, "max_time: 60")
    assert other.wanted_action() is Action.NONE
    other.take_over(keeper.checkpoint())
    assert other.wanted_action() is Action.SNAPSHOT_AND_STOP


def poisoned(tmp_path, **options):
    solver = tiny_solver(tmp_path, "snapshot: 2", **options)
    solver.callbacks.after_iteration.append(poison)
    return solver


def poison(solver) -> None:
    """Set one weight to NaN from iteration 3 on."""
    if solver.iteration == 3:
        solver.net.parameters[0].blob.data[0, 0] = np.nan


def test_a_nan_ends_the_run_and_names_the_layer(tmp_path):
    solver = poisoned(tmp_path, keep=1)
    with pytest.raises(
        NumericError,
        match=r"iteration 3: the loss is nan, first in layer 'ip' \(InnerProduct\), parameter 0; ",
    ):
        solver.solve()
    solver.close()
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "tiny_iter_2.caffemodel"


def test_training_may_go_on_after_a_nan_but_keeps_the_good_snapshots(tmp_path, caplog):
    solver = poisoned(tmp_path, keep=1, stop_at_nan=False)
    with caplog.at_level(logging.WARNING, "pcaffe"):
        solver.step(8)
    solver.close()
    assert solver.iteration == 8
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "Iteration 3: the loss is nan; going on"
    ]
    assert "weights of layer 'ip' are NaN or infinite; training goes on" in caplog.text
    names = {path.name.partition(".")[0] for path in tmp_path.iterdir()}
    assert names == {"tiny_iter_2"}


def test_an_interrupted_test_starts_again_when_resumed(tmp_path):
    solver = tiny_solver(tmp_path, "test_iter: 4 test_interval: 3 test_initialization: false")
    asked = iter([Action.NONE] * 3 + [Action.NONE] * 2 + [Action.STOP])
    solver.action_source = lambda: next(asked)
    solver.solve()
    assert (solver.iteration, solver.stopping) == (3, True)
    again = tiny_solver(tmp_path, "test_iter: 4 test_interval: 3 test_initialization: false")
    again.restore(f"{tmp_path}/tiny_iter_3.solverstate")
    assert again.state.tested == [0]
    again.step(1)
    whole = tiny_solver(tmp_path, "test_iter: 4 test_interval: 3 test_initialization: false")
    whole.step(4)
    assert again.state.tested == whole.state.tested == [4]
    for mine, theirs in zip(again.test_nets[0].layers, whole.test_nets[0].layers):
        assert mine.state() == theirs.state()


def test_ranks_have_shares_of_a_global_batch():
    layer = 'layer { name: "%s" type: "Data" include { phase: %s } data_param { batch_size: %d } }'
    both = layer % ("a", "TRAIN", 64) + layer % ("b", "TEST", 50)
    param = text.parse(f"state {{ phase: TRAIN }} {both}", caffe_pb2.NetParameter())
    assert divide_batches(param, 2, 4) == 0
    assert [layer.data_param.batch_size for layer in param.layer] == [16, 50]
    shares = []
    for rank in range(3):
        divided = caffe_pb2.NetParameter()
        divided.CopyFrom(param)
        assert divide_batches(divided, rank, 3) == 16
        shares.append(divided.layer[0].data_param.batch_size)
    assert shares == [6, 5, 5]
    with pytest.raises(UsageError, match="layer 'a': a global batch of 16 leaves some of 17 ranks"):
        divide_batches(param, 0, 17)


def test_global_batches_with_different_shares_are_refused():
    layer = 'layer { name: "%s" type: "Data" data_param { batch_size: %d } }'
    both = text.parse(layer % ("a", 6) + layer % ("b", 8), caffe_pb2.NetParameter())
    with pytest.raises(UsageError, match="global batches of 6 and 8 cannot be divided by 3"):
        divide_batches(both, 0, 3)
    assert divide_batches(both, 0, 2) == 0
