"""The plan of exchanges, on one rank without MPI."""

from __future__ import annotations

import pytest
from fake_parameters import FakeParameter, parameters, statistics

from pycaffe_dist.config import ExchangeSettings
from pycaffe_dist.errors import ClusterError
from pycaffe_dist.exchange import exchange_class, exchange_names
from pycaffe_dist.exchange.base import Exchange
from pycaffe_dist.exchange.fusing import fuse_and_slice
from pycaffe_dist.runtime.cluster import LocalCluster
from pycaffe_dist.runtime.plan import Plan, make_plan


class Choosy(Exchange):
    """Takes inner products' weights only."""

    type = "choosy"

    def supports(self, parameter, cluster):
        return None if len(parameter.shape) == 2 else "it is not a matrix"

    def cost(self, parameter, cluster):
        return 0.25

    def steps(self, shipment):
        raise NotImplementedError


def choosy() -> Exchange:
    return Choosy(LocalCluster(), ExchangeSettings())


def test_every_parameter_gets_one_row():
    weights, frozen = parameters([(6, 5), (7,)])
    frozen.receives_gradient = False
    running = statistics("norm", (3,))
    plan = make_plan([weights, frozen, running], choosy(), LocalCluster())
    rows = [(row.key, row.exchange, row.nbytes, row.seconds) for row in plan.rows]
    assert rows == [
        ("layer0[0]", "choosy", 120, 0.25),
        ("layer0[1]", "none", 28, 0.0),
        ("norm[0]", "mean", 12, 0.0),
    ]
    assert Plan.from_bytes(plan.to_bytes()) == plan
    assert plan.row(running).reason.startswith("running statistics")


def test_the_table_has_a_line_per_row_and_the_sum():
    plan = make_plan(parameters([(6, 5), (1000, 10)]), choosy(), LocalCluster())
    heading, *lines, total = plan.table().splitlines()
    assert heading.split() == ["parameter", "shape", "KiB", "exchange", "ms", "reason"]
    assert lines[1].split() == ["layer0[1]", "1000x10", "39.1", "choosy", "250", "as", "asked"]
    assert total.split() == ["sum", "39.2", "500"]


def test_a_parameter_that_the_exchange_cannot_combine_is_refused():
    with pytest.raises(ClusterError, match=r"--exchange=choosy .* layer0\[1\]: it is not a matrix"):
        make_plan(parameters([(6, 5), (7,)]), choosy(), LocalCluster())


def test_a_parameter_without_a_row_is_an_error():
    plan = make_plan(parameters([(6, 5)]), choosy(), LocalCluster())
    with pytest.raises(ClusterError, match=r"norm\[0\] has no row"):
        plan.row(statistics("norm", (3,)))


def test_a_parameter_must_not_be_listed_twice():
    (weights,) = parameters([(6, 5)])
    with pytest.raises(ClusterError, match=r"layer0\[0\] is listed twice"):
        make_plan([weights, weights], choosy(), LocalCluster())


def test_exchanges_are_found_by_name():
    assert {"allreduce", "naive"} <= set(exchange_names())
    with pytest.raises(ClusterError, match="unknown exchange 'alreduce'; did you mean 'allreduce'"):
        exchange_class("alreduce")


def covered(groups) -> dict[str, list[tuple[int, int]]]:
    """Return the stretches of each parameter that some group carries, sorted."""
    stretches: dict[str, list[tuple[int, int]]] = {}
    for group in groups:
        for piece in group:
            stretches.setdefault(piece.parameter.key, []).append((piece.begin, piece.end))
    return {key: sorted(pieces) for key, pieces in stretches.items()}


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
