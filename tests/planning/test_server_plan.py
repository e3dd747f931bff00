"""Which rank owns which shard, what a parameter server refuses, and its flags; without MPI."""

from __future__ import annotations

from collections import Counter

import pytest
from fake_parameters import parameters

from pycaffe_dist.cli.main import main
from pycaffe_dist.comm.cluster import LocalCluster
from pycaffe_dist.comm.measured import Contention, Link, Measured
from pycaffe_dist.config import ExchangeSettings, UpdatePriority
from pycaffe_dist.errors import FAILURE, WRONG_INPUT, ClusterError, UsageError
from pycaffe_dist.exchange import candidates, exchange_class
from pycaffe_dist.exchange.server.parameter_server import ParameterServer
from pycaffe_dist.planning.plan import buckets, make_plan
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.training.engine import make_engine
from pycaffe_dist.training.trainer import make_solver


class FakeCluster(LocalCluster):
    """Workers and perhaps servers, seen from rank 0."""

    def __init__(self, workers: int, servers: int = 0):
        super().__init__()
        self.size, self.hosts, self._servers = workers, self.hosts * workers, servers
        self.measured = Measured(Link(latency=1e-3, bandwidth=1e6), Contention(), 1e9, 1e9)

    @property
    def owners(self):
        last = self.size + self._servers
        return tuple(range(self.size, last) if self._servers else range(self.size))


def plan(cluster: FakeCluster, nets, **settings):
    """Return the exchange, the plan, and its groups."""
    choices = [exchange_class("parameter_server"), exchange_class("allreduce")]
    exchanges = [kind(cluster, ExchangeSettings(**settings)) for kind in choices]
    made = make_plan(nets, exchanges, cluster, "parameter_server")
    return exchanges[0], made, [bucket for _, bucket in buckets(made, nets, exchanges)]


@pytest.mark.parametrize("workers, servers", [(1, 0), (3, 0), (16, 0), (4, 1), (5, 3)])
def test_owners_have_nearly_the_same_number_of_bytes(workers, servers):
    cluster = FakeCluster(workers, servers)
    nets = parameters([(1000, 700), (1000,), (0,), (300, 1000), (300,), (7,), (50, 300)])
    exchange, _, shards = plan(cluster, nets, bucket_bytes=4096)
    assert isinstance(exchange, ParameterServer)
    exchange.prepare(shards)
    loads = Counter(dict.fromkeys(cluster.owners, 0))
    for shard, owner in exchange._owners.items():
        loads[owner] += shard.nbytes
    assert set(loads) == set(cluster.owners)
    assert sum(loads.values()) == sum(4 * parameter.blob.count for parameter in nets)
    assert max(loads.values()) - min(loads.values()) <= max(shard.nbytes for shard in shards)
    assert max(loads.values()) <= 1.3 * sum(loads.values()) / len(loads)


def test_the_cost_is_the_busiest_ranks():
    nets = parameters([(1000, 100)])
    seconds = {
        (workers, servers): plan(FakeCluster(workers, servers), nets)[1].rows[0].seconds
        for workers, servers in ((4, 0), (4, 1), (4, 4), (4, 8))
    }
    assert seconds[4, 0] == pytest.approx(2e-3 + 2 * 0.4 * 3 / 4)  # as allreduce
    assert seconds[4, 1] == pytest.approx(2e-3 + 4 * 0.4)  # one server answers four workers
    assert seconds[4, 4] == seconds[4, 8] == pytest.approx(2e-3 + 0.4)


def test_auto_never_chooses_it():
    assert ParameterServer not in candidates("auto")


def test_settings_that_need_mean_gradients_are_refused_once():
    reason = "clip_gradients needs the norm of all mean gradients, which no rank has"
    with pytest.raises(ClusterError) as refusal:
        plan(FakeCluster(3), parameters([(9,), (8,), (7,)]), needs_gradients=reason)
    assert str(refusal.value) == (
        f"--exchange=parameter_server can combine no parameter of this net: {reason}"
    )


def test_weights_that_forward_changes_stay_with_the_ranks():
    nets = parameters([(9,), (8,)])
    nets[1].changes_in_forward = True
    _, made, _ = plan(FakeCluster(3), nets)
    chosen = {row.exchange for row in made.rows if "changes it in forward" in row.reason}
    assert chosen == {"allreduce"}
    assert made.choice[nets[0].key] == "parameter_server"


def test_staleness_needs_servers_and_a_schedule_without_losses():
    with pytest.raises(ClusterError, match="staleness 2 with exchange allreduce: it must be 0"):
        make_engine(LocalCluster(), "allreduce", ExchangeSettings(staleness=2))
    param = caffe_pb2.SolverParameter(lr_policy="plateau")
    with pytest.raises(UsageError, match=r"plateau.* staleness must be 0"):
        make_solver(
            param,
            LocalCluster(),
            exchange="parameter_server",
            settings=ExchangeSettings(staleness=1),
        )


@pytest.mark.parametrize(
    "flags, complaint",
    [
        (["--staleness=2"], "flag --staleness is for --exchange=parameter_server"),
        (["--server-ranks=1"], "flag --server_ranks is for --exchange=parameter_server"),
        (["--update-priority=random"], "flag --update_priority is for --exchange=parameter_server"),
        (["--exchange=parameter_server", "--staleness=-1"], "--staleness needs 0 or more, not -1"),
        (["--bandwidth-limit=-3"], "--bandwidth_limit needs 0 or more, not -3"),
        (["--exchange=parameter_server", "--server-ranks=1"], "--server-ranks=1 needs several"),
    ],
)
def test_wrong_flags_give_one_line(capsys, flags, complaint):
    assert main(["train", "--solver=none.prototxt", *flags]) in (FAILURE, WRONG_INPUT)
    said = capsys.readouterr().err
    assert complaint in said
    assert "Traceback" not in said


def test_the_largest_changes_of_weights_go_first():
    nets = parameters([(200,), (300,), (400,)])
    for parameter, weight, gradient in zip(nets, (1, 4, 0), (1, 1, 1)):
        parameter.blob.data[...] = weight
        parameter.blob.diff[...] = gradient
    wanted = UpdatePriority.RELATIVE_MAGNITUDE
    exchange, _, shards = plan(FakeCluster(2), nets, bucket_bytes=4, update_priority=wanted)
    first = sorted(shards, key=exchange._priority)
    order = list(dict.fromkeys(shard.slices[0].parameter.blob.count for shard in first))
    assert order == [400, 200, 300], "weights of 0 change by more than anything"
