"""When the engine starts which exchange, on one rank without MPI, with a recording exchange."""

from __future__ import annotations

import numpy as np
import pytest
from fake_parameters import parameters

from pycaffe_dist.comm.cluster import LocalCluster
from pycaffe_dist.comm.tasks import Step
from pycaffe_dist.comm.thread import CommunicationThread
from pycaffe_dist.config import Action, ExchangeSettings
from pycaffe_dist.errors import ClusterError, UsageError
from pycaffe_dist.exchange.base import Cost, Exchange
from pycaffe_dist.exchange.buckets import fuse_and_slice
from pycaffe_dist.solvers.local_engine import LocalEngine
from pycaffe_dist.training import engine as engines
from pycaffe_dist.training.engine import ExchangeEngine, make_engine


class Doubling(Exchange):
    """Two ranks with equal gradients would get their sum."""

    type = "doubling"
    started: list[tuple[str, int]]

    def cost(self, slices, cluster):
        return Cost(0, 0)

    def group(self, parameters):
        return fuse_and_slice(parameters, self.settings.bucket_bytes, self.settings.slice_bytes)

    def submit(self, bucket, order):
        type(self).started.append((bucket.name, order))
        return super().submit(bucket, order)

    def steps(self, bucket):
        yield Step([])
        for piece in bucket.slices:
            piece.gradient[:] *= 2


class Late(Doubling):
    during_backward = False


class FakeCluster(LocalCluster):
    """A cluster with a communication thread, as the engine needs one."""

    def __init__(self):
        super().__init__()
        self.communication = CommunicationThread(lambda requests: True)


@pytest.fixture
def make(monkeypatch):
    clusters = []

    def make(kind=Doubling) -> ExchangeEngine:
        kind.started = []
        monkeypatch.setattr(engines, "candidates", lambda name, wire: [kind])
        clusters.append(FakeCluster())
        return ExchangeEngine(clusters[-1], "doubling", ExchangeSettings(40, 400))

    yield make
    for cluster in clusters:
        cluster.communication.close(5)


def test_an_exchange_starts_when_its_last_gradient_is_ready(make):
    first, large, second, other = nets = parameters([(4,), (150,), (4,), (9,)])
    engine = make()
    engine.start(nets)
    for parameter in nets:
        parameter.blob.diff[...] = 1
    engine.gradient_ready(other)
    engine.gradient_ready(second)
    assert Doubling.started == [("layer1[1]", 0)]
    engine.gradient_ready(large)
    assert Doubling.started[1:] == [("layer0[1]", 1), ("layer0[1]", 2)]
    engine.gradient_ready(first)
    assert Doubling.started[3:] == [("layer1[0], layer0[0]", 3)]
    for parameter in (first, large, second, other, other):
        engine.wait(parameter)
        assert np.all(parameter.blob.diff == 2)


def test_the_next_iteration_continues_the_order(make):
    nets = parameters([(20,), (20,)])
    engine = make()
    engine.start(nets)
    for _ in range(3):
        for parameter in reversed(nets):
            engine.gradient_ready(parameter)
        for parameter in nets:
            engine.wait(parameter)
    assert [order for _, order in Doubling.started] == list(range(6))


def test_some_exchanges_wait_for_the_end_of_backward(make):
    one, other = nets = parameters([(20,), (20,)])
    engine = make(Late)
    engine.start(nets)
    engine.gradient_ready(one)
    engine.gradient_ready(other)
    assert Late.started == []
    engine.wait(one)
    assert Late.started == [("layer0[1]", 0), ("layer0[0]", 1)]


def test_messages_that_are_kept_apart_wait_for_the_end_of_backward(make):
    one, other = nets = parameters([(20,), (20,)])
    engine = make()
    engine.start(nets)
    for apart, before in ((True, 0), (False, 4)):
        engine.keep_apart(apart)
        engine.gradient_ready(other)
        engine.gradient_ready(one)
        assert len(Doubling.started) == before
        engine.wait(one)
        engine.wait(other)
    assert [order for _, order in Doubling.started] == list(range(4))


def test_a_second_net_starts_again(make):
    engine = make()
    for shapes in ([(20,), (20,)], [(30,), (3,), (3,)]):
        nets = parameters(shapes)
        engine.start(nets)
        for parameter in reversed(nets):
            parameter.blob.diff[...] = 3
            engine.gradient_ready(parameter)
        for parameter in nets:
            engine.wait(parameter)
            assert np.all(parameter.blob.diff == 6)
    engine.finish()


def test_parameters_without_a_gradient_need_no_exchange(make):
    frozen, weights = nets = parameters([(20,), (20,)])
    frozen.receives_gradient = False
    engine = make()
    engine.start(nets)
    engine.gradient_ready(weights)
    engine.wait(weights)
    engine.wait(frozen)
    assert [name for name, _ in Doubling.started] == ["layer0[1]"]
    with pytest.raises(ClusterError, match=r"layer0\[0\] is ready, but the exchange plan has none"):
        engine.gradient_ready(frozen)


def test_a_gradient_is_ready_once_per_iteration(make):
    nets = parameters([(20,), (20,)])
    engine = make()
    engine.start(nets)
    engine.gradient_ready(nets[0])
    with pytest.raises(ClusterError, match=r"layer0\[0\] is ready twice"):
        engine.gradient_ready(nets[0])


@pytest.mark.parametrize("kind", [Doubling, Late])
def test_waiting_for_a_gradient_that_backward_did_not_make_is_an_error(make, kind):
    one, other = nets = parameters([(4,), (4,)])
    engine = make(kind)
    engine.start(nets)
    for _ in range(2):
        engine.gradient_ready(one)
        with pytest.raises(ClusterError, match=r"of layer0\[0\], .* not made that of layer0\[1\]"):
            engine.wait(one)
        engine.gradient_ready(other)
        engine.wait(one)
        engine.wait(other)


def test_the_error_of_an_exchange_is_raised_where_it_is_awaited(make):
    class Failing(Doubling):
        def steps(self, bucket):
            yield Step([])
            raise ClusterError("a rank is gone")

    (weights,) = parameters([(20,)])
    engine = make(Failing)
    engine.start([weights])
    engine.gradient_ready(weights)
    with pytest.raises(ClusterError, match="a rank is gone"):
        engine.wait(weights)


def test_the_work_after_the_messages_is_done_once_per_iteration(make):
    """Also if the solver waits twice and changes the gradient in between."""

    class Adding(Doubling):
        def complete(self, bucket):
            for piece in bucket.slices:
                piece.gradient[:] += 1

    nets = parameters([(4,), (4,)])
    engine = make(Adding)
    engine.start(nets)
    for iteration in range(2):
        for parameter in nets:
            parameter.blob.diff[...] = iteration
            engine.gradient_ready(parameter)
        for parameter in nets + nets:
            engine.wait(parameter)
            assert np.all(parameter.blob.diff == 2 * iteration + 1)


def test_one_rank_needs_no_exchange():
    engine = make_engine(LocalCluster(), "naive")
    assert isinstance(engine, LocalEngine)
    assert engine.agree(Action.SNAPSHOT) is Action.SNAPSHOT
    with pytest.raises(UsageError, match="unknown exchange 'gossip'"):
        make_engine(LocalCluster(), "gossip")
