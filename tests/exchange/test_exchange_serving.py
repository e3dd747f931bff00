"""A shard of the parameter server without MPI: which worker gets which weights when."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.errors import ClusterError
from pycaffe_dist.exchange.server.serving import (
    Header,
    Kind,
    Layout,
    Part,
    Setup,
    Shard,
    make_shards,
)
from pycaffe_dist.schema import caffe_pb2


def make(workers: int, staleness: int, **solver) -> Shard:
    """Return a shard of two parts with one weight per worker, all zero."""
    parts = (Part("a[0]", 1, 1.0, 1.0), Part("b[0]", workers - 1, 1.0, 1.0))
    param = caffe_pb2.SolverParameter(**{"type": "SGD", "momentum": 0.0, **solver})
    setup = Setup(param, workers, staleness, (Layout(7, "float64", parts),))
    return make_shards(Setup.decode(setup.encode()))[7]


def push(shard: Shard, worker: int, gradient: np.ndarray, rate: float = 1.0) -> list[int]:
    """Push a worker's next gradient; return the workers that then get weights."""
    header = Header(Kind.PUSH, shard.clocks[worker], rate)
    answers, _ = shard.push(worker, gradient.copy(), header, 0.0)
    return [answer.worker for answer in answers]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_no_worker_is_further_ahead_than_the_staleness(staleness):
    """A worker's weights include all its own updates, and the updates of others that s demands."""
    workers = 4
    shard = make(workers, staleness)
    rng = np.random.default_rng(staleness)
    running = set(range(workers))
    furthest = 0
    for _ in range(400):
        worker = int(rng.choice(sorted(running)))
        running.remove(worker)
        for free in push(shard, worker, np.eye(workers)[worker]):
            running.add(free)
            # A gradient of 1 divided by four workers: an update changes a worker's weight by a
            # quarter.
            seen = np.rint(-shard.weights * workers)
            assert seen[free] == shard.clocks[free]
            assert seen.min() >= shard.clocks[free] - staleness
        assert running, "all workers wait for each other"
        furthest = max(furthest, max(shard.clocks) - min(shard.clocks))
    # A worker that waits has made one update more than the staleness.
    assert furthest == staleness + 1


def test_one_update_of_each_worker_gives_one_workers_step():
    gradient = np.array([1.0, -2.0, 3.0])
    solver = {"weight_decay": 0.0, "lr_policy": "fixed"}
    stale, synchronous = make(3, 2, **solver), make(3, 0, **solver)
    for shard in (stale, synchronous):
        for _ in range(5):
            for worker in range(3):
                push(shard, worker, gradient, rate=0.5)
    np.testing.assert_allclose(stale.weights, synchronous.weights, rtol=1e-12)
    np.testing.assert_allclose(stale.weights, -5 * 0.5 * gradient, rtol=1e-12)


def test_history_and_weights_can_be_read_and_set():
    shard = make(3, 0, type="Adam", momentum=0.9)
    values = np.arange(9.0)
    shard.load(values)
    np.testing.assert_array_equal(shard.weights, values[:3])
    np.testing.assert_array_equal(shard.history(), values[3:].reshape(2, 3))
    shard.load(-values[:3])
    np.testing.assert_array_equal(shard.weights, -values[:3])
    np.testing.assert_array_equal(shard.history(), values[3:].reshape(2, 3))


def test_workers_in_different_iterations_are_named():
    shard = make(3, 0)
    shard.push(2, np.zeros(3), Header(Kind.PUSH, 5, 1.0), 0.0)
    with pytest.raises(
        ClusterError, match=r"a\[0\], b\[0\]: rank 1 is in iteration 6, rank 2 in .*5"
    ):
        shard.push(1, np.zeros(3), Header(Kind.PUSH, 6, 1.0), 0.0)
