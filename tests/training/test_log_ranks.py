"""What a run says about its ranks at the start."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from pycaffe_dist.config import TrainOptions
from pycaffe_dist.data.partition import Shard
from pycaffe_dist.training import trainer


def log_of(
    caplog, size: int, cores: int, divided: bool = False, rank: int = 0, scaled: int = 0
) -> list[tuple[str, str]]:
    """Return the levels and texts of the lines about some ranks on one host."""
    cluster = SimpleNamespace(
        size=size,
        hosts=("a",) * size,
        host="a",
        owners=tuple(range(size)),
        local_rank=rank,
        local_size=size,
        local_cores=cores,
    )
    param = SimpleNamespace(iter_size=1, base_lr=0.01)
    shard = Shard(rank, size)
    solver = SimpleNamespace(batch_size=64, param=param, net=SimpleNamespace(shard=shard))
    options = TrainOptions("solver", global_batch=divided, scale_lr=scaled)
    with caplog.at_level(logging.INFO):
        trainer._log_ranks(cluster, solver, options)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


@pytest.mark.parametrize(
    "ranks, cores, rank, warned", [(4, 4, 0, 0), (4, 2, 0, 1), (4, 2, 3, 0), (1, 0, 0, 0)]
)
def test_more_ranks_than_cores_are_one_warning_per_host(caplog, ranks, cores, rank, warned):
    lines = log_of(caplog, ranks, cores, rank=rank)
    warnings = [text for level, text in lines if level == "WARNING"]
    assert len(warnings) == warned
    assert all(text.startswith("4 ranks share the 2 core(s) of a and wait") for text in warnings)


@pytest.mark.parametrize("ranks, divided, told", [(4, False, 1), (4, True, 0), (1, False, 0)])
def test_a_larger_batch_with_the_same_rate_is_one_line(caplog, ranks, divided, told):
    lines = [text for _, text in log_of(caplog, ranks, 8, divided)]
    words = "This is 4 times the solver's batch, and base_lr is still 0.01: raise that"
    assert sum(text.startswith(words) for text in lines) == told


def test_a_rate_that_follows_the_batch_is_one_line(caplog):
    lines = [text for _, text in log_of(caplog, 4, 8, scaled=500)]
    assert (
        "Learning rates are 4 times the solver's, as the batch is, from iteration 500 on" in lines
    )
    assert not any("base_lr is still" in text for text in lines)
