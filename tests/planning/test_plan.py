"""The plan of exchanges, on one rank without MPI."""

from __future__ import annotations

import json
import re

import pytest
from fake_parameters import FakeParameter, inner_products, parameters, statistics

from pycaffe_dist.comm.cluster import LocalCluster
from pycaffe_dist.comm.measured import Link
from pycaffe_dist.config import ExchangeSettings
from pycaffe_dist.errors import ClusterError, UsageError
from pycaffe_dist.exchange import candidates, exchange_class, exchange_names
from pycaffe_dist.exchange.base import Cost, Exchange
from pycaffe_dist.exchange.buckets import fuse_and_slice
from pycaffe_dist.planning.plan import Plan, make_plan


class Choosy(Exchange):
    """Takes inner products' weights only."""

    type = "choosy"

    def supports(self, parameter, cluster):
        return None if len(parameter.shape) == 2 else "it is not a matrix"

    def cost(self, slices, cluster):
        return Cost(1, sum(piece.nbytes for piece in slices) ** 2)

    def steps(self, bucket):
        raise NotImplementedError


class General(Choosy):
    """Takes everything, at 200 bytes per element."""

    type = "general"

    def supports(self, parameter, cluster):
        return None

    def cost(self, slices, cluster):
        return Cost(1, 50 * sum(piece.nbytes for piece in slices))


class FakeCluster(LocalCluster):
    """Several ranks, seen from rank 0, that all have the same facts."""

    def __init__(self, size: int = 4, *others: dict[str, str]):
        super().__init__()
        self.size, self.hosts, self.others = size, self.hosts * size, others
        self.measured.link, self.measured.product_rate = Link(latency=1e-3, bandwidth=1e6), 1e9

    def gather_bytes(self, data):
        return [data, *(json.dumps(other).encode() for other in self.others)]


def make(nets, *kinds, wanted="auto", cluster=None, settings=None) -> Plan:
    cluster = cluster or FakeCluster()
    settings = settings or ExchangeSettings()
    return make_plan(nets, [kind(cluster, settings) for kind in kinds], cluster, wanted)


def test_every_parameter_gets_one_row():
    weights, frozen = parameters([(6, 5), (7,)])
    frozen.receives_gradient = False
    running = statistics("norm", (3,))
    plan = make([weights, frozen, running], Choosy)
    rows = [(row.key, row.exchange, row.nbytes, row.seconds) for row in plan.rows]
    assert rows == [
        ("layer0[0]", "choosy", 120, pytest.approx(0.001 + 0.0144)),
        ("layer0[1]", "none", 28, 0.0),
        ("norm[0]", "mean", 12, 0.0),
    ]
    assert Plan.from_bytes(plan.to_bytes()) == plan
    assert plan.row(running).reason.startswith("running statistics")


def test_the_table_has_a_line_per_row_and_the_sum():
    plan = make(parameters([(2, 5), (1000, 10)]), Choosy, General)
    heading, *lines, total = plan.table().splitlines()
    columns = ["parameter", "shape", "KiB", "exchange", "ms", "runner-up", "ms", "reason"]
    assert heading.split() == columns
    assert lines[0].split()[3:] == ["choosy", "2.6", "general", "3", "least", "time"]
    assert lines[1].split()[1:6] == ["1000x10", "39.1", "general", "2e+03", "choosy"]
    assert total.split() == ["sum", "39.1", "2e+03", "together", "up", "to", "64", "KiB"]


def test_parameters_that_the_chosen_exchange_cannot_combine_use_another_one():
    plan = make(parameters([(6, 50), (7,)]), Choosy, General, wanted="choosy")
    rows = [(row.exchange, row.runner_up, row.reason) for row in plan.rows]
    assert rows == [
        ("choosy", "general", "as asked"),
        ("general", "", "choosy: it is not a matrix"),
    ]


def test_an_exchange_that_can_combine_nothing_is_refused():
    with pytest.raises(
        ClusterError, match=r"--exchange=choosy can .* this net: it is not a matrix"
    ):
        make(parameters([(6,), (7,)]), Choosy, General, wanted="choosy")


def sufficient_factor(nets, cluster=None, **settings) -> Plan:
    kinds = [exchange_class("allreduce"), exchange_class("sufficient_factor")]
    return make(nets, *kinds, cluster=cluster, settings=ExchangeSettings(**settings))


def test_costs_of_factors_and_of_gradients():
    """4 ranks, 3 samples, 10×20 weights, 1 ms, 1 MB/s, 1 GFLOP/s."""
    (row,) = sufficient_factor(inner_products([(10, 20)], 3)).rows
    assert row.exchange == "allreduce"  # a part of a bucket pays a part of the latency
    assert row.seconds == pytest.approx(2e-3 * 800 / 65536 + 2 * 800 * 0.75 / 1e6)
    # One more product of 3 samples for each of the other three ranks.
    assert row.runner_up_seconds == pytest.approx(1e-3 + 3 * 3 * 30 * 4e-6 + 2 * 3 * 200 * 3e-9)
    (row,) = sufficient_factor(inner_products([(100, 200)], 3)).rows
    assert row.exchange == "sufficient_factor"
    assert row.runner_up_seconds == pytest.approx(2e-3 + 2 * 80000 * 0.75 / 1e6)


def test_factors_are_for_the_weights_of_one_inner_product():
    (weights,) = nets = inner_products([(100, 200)], 3)
    assert sufficient_factor(nets).rows[0].exchange == "sufficient_factor"
    assert "2 passes (iter_size)" in sufficient_factor(nets, passes=2).rows[0].reason
    weights.sharers = [(1, 0), (4, 0)]
    assert "2 layers share it" in sufficient_factor(nets).rows[0].reason
    assert "has no factors" in sufficient_factor(parameters([(100, 200)])).rows[0].reason


def test_batches_that_differ_between_ranks_have_no_common_factors():
    nets = inner_products([(100, 200)], 3)
    same = {"sufficient_factor ip0[0]": exchange_class("sufficient_factor").facts(None, nets[0])}
    other = {name: fact.replace("3 samples", "4 samples") for name, fact in same.items()}
    different = FakeCluster(3, same, other)
    (row,) = sufficient_factor(nets, FakeCluster(2, same)).rows
    assert row.exchange == "sufficient_factor"
    (row,) = sufficient_factor(nets, different).rows
    assert row.exchange == "allreduce"
    assert re.search(r"rank 0 has 3 samples.*, rank 2 4 samples", row.reason)
    with pytest.raises(ClusterError, match=r"this net: rank 0 has 3 samples"):
        make(
            nets,
            exchange_class("sufficient_factor"),
            exchange_class("allreduce"),
            wanted="sufficient_factor",
            cluster=different,
        )


def test_a_parameter_without_a_row_is_an_error():
    plan = make(parameters([(6, 5)]), Choosy)
    with pytest.raises(ClusterError, match=r"norm\[0\] has no row"):
        plan.row(statistics("norm", (3,)))


def test_a_parameter_must_not_be_listed_twice():
    (weights,) = parameters([(6, 5)])
    with pytest.raises(ClusterError, match=r"layer0\[0\] is listed twice"):
        make([weights, weights], Choosy)


def test_exchanges_are_found_by_name():
    assert {"allreduce", "naive"} <= set(exchange_names())
    assert [kind.type for kind in candidates("naive")] == ["naive", "allreduce"]
    assert "naive" not in [kind.type for kind in candidates("auto")]
    with pytest.raises(UsageError, match="unknown exchange 'alreduce'; did you mean 'allreduce'"):
        exchange_class("alreduce")
    with pytest.raises(UsageError, match="unknown exchange 'aut'; did you mean 'auto'"):
        exchange_class("aut")


def covered(groups) -> dict[str, list[tuple[int, int]]]:
    """Return the ranges of each parameter that the groups carry, sorted."""
    stretches: dict[str, list[tuple[int, int]]] = {}
    for group in groups:
        for piece in group:
            stretches.setdefault(piece.parameter.key, []).append((piece.begin, piece.end))
    return {key: sorted(slices) for key, slices in stretches.items()}


def sizes(groups) -> list[int]:
    return [sum(piece.end - piece.begin for piece in group) for group in groups]


def test_small_parameters_are_fused_and_large_ones_sliced():
    nets = parameters([(10,), (1000,), (5,), (0,), (26,), (1,)])
    groups = fuse_and_slice(nets, bucket_bytes=4 * 40, slice_bytes=4 * 300)
    assert covered(groups) == {
        "layer0[0]": [(0, 10)],
        "layer0[1]": [(0, 250), (250, 500), (500, 750), (750, 1000)],
        "layer1[0]": [(0, 5)],
        "layer1[1]": [(0, 0)],
        "layer2[0]": [(0, 26)],
        "layer2[1]": [(0, 1)],
    }
    assert sizes(groups) == [15, 250, 250, 250, 250, 27]


def test_parameters_of_different_types_do_not_travel_together():
    one, other = parameters([(3,)]), parameters([(3,)], "float64")
    assert len(fuse_and_slice([*one, *other], 1000, 1000)) == 2


def test_a_slice_never_has_more_than_it_may():
    for count in (1001, 1999, 2000, 2001, 12345):
        (parameter,) = parameters([(count,)])
        groups = fuse_and_slice([parameter], bucket_bytes=0, slice_bytes=4000)
        assert max(sizes(groups)) <= 1000
        assert sum(sizes(groups)) == count
        assert isinstance(groups[0][0].parameter, FakeParameter)


def test_auto_does_not_consider_hierarchical_on_one_host():
    def considered(hosts: tuple[str, ...]) -> set[str]:
        cluster = FakeCluster(size=len(hosts))
        cluster.hosts = hosts
        kinds = [kind(cluster, ExchangeSettings()) for kind in candidates("auto")]
        rows = make_plan(parameters([(9, 4)]), kinds, cluster).rows
        return {rows[0].exchange, rows[0].runner_up} - {""}

    assert considered(("a", "a", "a", "a")) == {"allreduce"}
    assert considered(("a", "a", "b", "b")) == {"allreduce", "hierarchical"}
