"""Means of weights against NumPy: in tests and snapshots, and after a run is resumed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny import tiny_param, tiny_solver

from pycaffe_dist.config import ExchangeSettings
from pycaffe_dist.errors import SnapshotError, UsageError
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.snapshot.caffemodel import load_weights
from pycaffe_dist.snapshot.solverstate import load_state, save_state
from pycaffe_dist.solvers import Solver
from pycaffe_dist.solvers.checkpoint import CheckpointKeeper
from pycaffe_dist.training.trainer import make_solver

EMA = "averaging: 'EMA' averaging_decay: 0.7"
SWA = "averaging: 'SWA' averaging_start: 4 averaging_period: 3"
NORM = """
layer { name: 'norm' type: 'BatchNorm' bottom: 'ip' top: 'norm' }
layer { name: 'loss' type: 'EuclideanLoss' bottom: 'norm' bottom: 'y' top: 'loss' }
"""


def with_norm(folder, fields: str = "") -> Solver:
    """Return a tiny solver whose net has running statistics."""
    param = tiny_param(folder, fields)
    del param.net_param.layer[-1]
    param.net_param.MergeFrom(text.parse(NORM, caffe_pb2.NetParameter()))
    return Solver(param)


def weights_of(net) -> list[np.ndarray]:
    return [blob.read_data().copy() for layer in net.layers for blob in layer.blobs]


def weights_in(path) -> list[np.ndarray]:
    return [blob for layer in load_weights(path) for blob in layer.blobs]


def by_numpy(history: list[list[np.ndarray]], fields: str) -> list[np.ndarray]:
    """Return the means of the weights after each of some iterations."""
    if fields == SWA:
        return [np.mean(arrays[3::3], axis=0, dtype=np.float64) for arrays in zip(*history)]
    means = [array.astype(np.float64) for array in history[0]]
    for number, arrays in enumerate(history[1:], 1):
        decay = min(0.7, (1 + number) / (10 + number))
        means = [decay * mean + (1 - decay) * array for mean, array in zip(means, arrays)]
    return means


@pytest.mark.parametrize("fields", [EMA, SWA])
@pytest.mark.parametrize("format", ["BINARYPROTO", "HDF5"])
def test_snapshots_have_the_means_and_states_the_weights(tmp_path, fields, format):
    solver = with_norm(tmp_path, f"{fields} snapshot_format: {format}")
    history = []
    solver.callbacks.after_iteration.append(lambda solver: history.append(weights_of(solver.net)))
    solver.step(20)
    path = solver.snapshot()
    solver.close()
    assert path.endswith(".caffemodel" if format == "BINARYPROTO" else ".caffemodel.h5")
    for found, expected in zip(weights_in(path), by_numpy(history, fields), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    state = load_state(path.replace("caffemodel", "solverstate"))
    assert state.averaged == {EMA: 20, SWA: 6}[fields]
    for found, expected in zip(state.weights, weights_of(solver.net), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("fields", [EMA, SWA])
@pytest.mark.parametrize("format", ["BINARYPROTO", "HDF5"])
def test_a_resumed_run_has_the_same_bits(tmp_path, fields, format):
    """20 iterations are 10, a snapshot, and 10."""
    fields = f"{fields} snapshot_format: {format} type: 'AdamW' lr_policy: 'cosine' max_iter: 20"
    whole = with_norm(tmp_path, fields)
    whole.step(10)
    path = whole.snapshot()
    whole.step(10)
    resumed = with_norm(tmp_path, fields)
    resumed.restore(path.replace("caffemodel", "solverstate"))
    resumed.step(10)
    assert whole.state.average.count == resumed.state.average.count
    for one, other in (
        (weights_of(whole.net), weights_of(resumed.net)),
        (whole.state.average.arrays, resumed.state.average.arrays),
        (whole.method.history, resumed.method.history),
    ):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_tests_use_the_means(tmp_path):
    test = "test_iter: 1 test_interval: 5 test_initialization: false"
    solver = with_norm(tmp_path, f"{EMA} {test}")
    solver.step(6)
    assert solver.state.average.count == 6
    for mine, theirs in zip(
        weights_of(solver.test_nets[0]), solver.state.average.arrays, strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert not np.array_equal(solver.state.average.arrays[0], weights_of(solver.net)[0])


def test_before_the_first_mean_the_weights_count(tmp_path):
    solver = with_norm(
        tmp_path, "averaging: 'SWA' averaging_start: 9 test_iter: 1 test_interval: 2"
    )
    solver.step(3)
    path = solver.snapshot()
    for place in (weights_of(solver.test_nets[0]), weights_in(path)):
        for mine, theirs in zip(place, weights_of(solver.net), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert not load_state(path.replace("caffemodel", "solverstate")).weights


def test_training_does_not_depend_on_averaging(tmp_path):
    solvers = [tiny_solver(tmp_path, fields) for fields in ("", EMA)]
    for solver in solvers:
        solver.step(7)
    for mine, theirs in zip(*(weights_of(solver.net) for solver in solvers), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_run_may_begin_or_end_averaging_when_it_is_resumed(tmp_path):
    averaging, plain = tiny_solver(tmp_path, EMA), tiny_solver(tmp_path)
    averaging.step(5)
    state = averaging.snapshot().replace("caffemodel", "solverstate")
    plain.restore(state)
    for mine, theirs in zip(weights_of(plain.net), weights_of(averaging.net), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    plain.step(1)
    state = plain.snapshot().replace("caffemodel", "solverstate")
    again = tiny_solver(tmp_path, EMA)
    again.restore(state)
    again.step(1)
    assert again.state.average.count == 1


def test_weights_of_another_net_are_refused(tmp_path):
    norm = with_norm(tmp_path, f"{EMA} momentum: 0")
    norm.step(2)
    state = norm.snapshot().replace("caffemodel", "solverstate")
    data = load_state(state)
    save_state(state, replace(data, weights=data.weights[:-1]))
    (tmp_path / "tiny_iter_2.solverstate.json").unlink()
    again = with_norm(tmp_path, EMA)
    before = weights_of(again.net)
    with pytest.raises(SnapshotError, match="its weights do not fit this net"):
        again.restore(state)
    for mine, theirs in zip(weights_of(again.net), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_checkpoint_has_the_means(tmp_path):
    """What ranks go on from when others are lost."""
    whole = with_norm(tmp_path, EMA)
    keeper = CheckpointKeeper(whole)
    whole.step(4)
    other = with_norm(tmp_path, EMA)
    other.take_over(keeper.checkpoint())
    whole.step(3)
    other.step(3)
    assert other.state.average.count == 7
    for mine, theirs in zip(whole.state.average.arrays, other.state.average.arrays, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("fields", [EMA, SWA])
def test_the_next_means_of_statistics_are_known_before_an_update(tmp_path, fields):
    solver = with_norm(tmp_path, fields)
    average, found = solver.state.average, []
    solver.callbacks.after_gradients.append(lambda solver: found.append(average.next_statistics()))
    solver.step(7)
    after = average.statistics()
    assert len(found[-1]) == len(after) == 3
    np.testing.assert_equal(found[-1], after)


def test_staleness_is_refused(tmp_path):
    with pytest.raises(UsageError, match="averaging needs equal weights on all ranks"):
        make_solver(tiny_param(tmp_path, EMA), settings=ExchangeSettings(staleness=2))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("averaging: 'ema'", "unknown averaging 'ema'; known are EMA, SWA"),
        ("averaging: 'EMA' averaging_decay: 1", "averaging_decay must be at least 0 and below 1"),
        ("averaging: 'SWA' averaging_period: 0", "averaging_period must be at least 1, found 0"),
        ("averaging: 'SWA' averaging_start: -1", "averaging_start must be at least 0, found -1"),
    ],
)
def test_wrong_fields_are_refused(tmp_path, fields, message):
    with pytest.raises(UsageError, match=message):
        tiny_solver(tmp_path, fields)
