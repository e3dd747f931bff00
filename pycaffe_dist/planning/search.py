"""Chooses exchanges that together make the shortest iteration, by simulating it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product, starmap
from typing import TYPE_CHECKING

from pycaffe_dist.calibration.contention import contention_of
from pycaffe_dist.calibration.copies import copy_rate
from pycaffe_dist.calibration.products import product_rate
from pycaffe_dist.config import Overlap
from pycaffe_dist.exchange.schedule import buckets_of
from pycaffe_dist.planning.layer_times import Times
from pycaffe_dist.planning.simulation import Iteration, Transfer, Update, simulate

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.exchange.base import Bucket, Exchange
    from pycaffe_dist.net.parameter import Parameter

# A choice must shorten the iteration by more than this fraction; predictions are not finer.
_WORTHWHILE = 0.003
# The number of the largest parameters that are tried one by one; the others follow.
_MOST_TRIED = 48
# Exchanges with buckets are tried with these bucket sizes.
_BUCKET_BYTES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
# A plan is worth a trial if its predicted time is at most this multiple of the least.
_CLOSE = 1.25
_MOST_PLANS = 5


@dataclass(frozen=True)
class Workload:
    """A rank's computing in an iteration of some passes, and how long messages may overlap it."""

    times: Times
    passes: int = 1
    overlap: Overlap = Overlap.BACKWARD


@dataclass(frozen=True)
class Choice:
    """The exchange of every parameter that has one, by its key, and the bytes of a bucket."""

    exchanges: Mapping[str, str]
    bucket_bytes: int


def best_together(
    parameters: Sequence[Parameter],
    exchanges: Sequence[Exchange],
    costs: Mapping[str, Mapping[str, float]],
    workload: Workload,
    cluster: Cluster,
) -> list[Choice]:
    """Return the choice with the best prediction, then others that may be as good.

    ``costs`` are the seconds of each possible exchange on its own.  The search starts from the best
    of a few choices: each exchange wherever it is possible, and for each parameter the fastest one
    on its own; all with several sizes of buckets.
    """
    cheapest = {key: min(of, key=of.__getitem__) for key, of in costs.items() if of}
    beginnings = [cheapest] + [
        {key: kind.type if kind.type in costs[key] else name for key, name in cheapest.items()}
        for kind in exchanges
    ]

    def total(choice: Choice) -> float:
        use_buckets(exchanges, choice.bucket_bytes)
        return predicted(choice.exchanges, parameters, exchanges, workload, cluster).total

    ranked = sorted(
        ((total(choice), choice) for choice in starmap(Choice, product(beginnings, _BUCKET_BYTES))),
        key=lambda pair: pair[0],
    )
    seconds, best = ranked[0]
    by_size = sorted(parameters, key=lambda parameter: -parameter.blob.count)
    open_ones = [p.key for p in by_size if len(costs[p.key]) > 1][:_MOST_TRIED]
    for key in open_ones:
        for name in costs[key]:
            changed = replace(best, exchanges={**best.exchanges, key: name})
            if (less := total(changed)) < seconds * (1 - _WORTHWHILE):
                best, seconds = changed, less
    close = [choice for others, choice in ranked if others < seconds * _CLOSE]
    different: dict[tuple, Choice] = {}
    for choice in (best, *close):
        use_buckets(exchanges, choice.bucket_bytes)
        sent = buckets_of(choice.exchanges, parameters, exchanges, workload.overlap)
        same = tuple((exchange.type, bucket.slices) for exchange, bucket in sent)
        different.setdefault(same, choice)
    return list(different.values())[:_MOST_PLANS]


def use_buckets(exchanges: Sequence[Exchange], bucket_bytes: int) -> None:
    """Let exchanges make buckets of at most ``bucket_bytes``."""
    for exchange in exchanges:
        exchange.settings = replace(exchange.settings, bucket_bytes=bucket_bytes)


def predicted(
    choice: Mapping[str, str],
    parameters: Sequence[Parameter],
    exchanges: Sequence[Exchange],
    workload: Workload,
    cluster: Cluster,
) -> Iteration:
    """Return the predicted iteration with the exchanges of ``choice``."""
    sent = []
    if cluster.size > 1:
        sent = buckets_of(choice, parameters, exchanges, workload.overlap)
    transfers = [_transfer(exchange, bucket, cluster) for exchange, bucket in sent]
    numbers: dict[str, list[int]] = {parameter.key: [] for parameter in parameters}
    for number, (_, bucket) in enumerate(sent):
        for piece in bucket.slices:
            numbers[piece.parameter.key].append(number)
    times = workload.times
    per_number = times.update / max(1, sum(parameter.blob.count for parameter in parameters))
    updates = [
        Update(
            per_number * parameter.blob.count,
            tuple(numbers[parameter.key]),
            min(layer for layer, _ in parameter.sharers),
        )
        for parameter in reversed(parameters)
    ]
    return simulate(
        times.forward,
        times.backward,
        transfers,
        updates,
        workload.passes,
        overlap=workload.overlap,
        contention=contention_of(cluster),
    )


def spared_seconds(exchange: Exchange, bucket: Bucket, cluster: Cluster) -> float:
    """Return the seconds that a bucket saves in the backward of its layer."""
    flops = exchange.cost(bucket.slices, cluster).saved_flops
    return flops / product_rate(cluster) if flops else 0.0


def _transfer(exchange: Exchange, bucket: Bucket, cluster: Cluster) -> Transfer:
    cost = exchange.cost(bucket.slices, cluster)
    # A bucket is complete with the parameter that backward reaches last.
    last = min((piece.parameter for piece in bucket.slices), key=_ready_after)
    return Transfer(
        layer=last.layer_index,
        after=_ready_after(last) if exchange.during_backward else None,
        wire=cost.wire_seconds(cluster) + (cost.copied and cost.copied / copy_rate(cluster)),
        latency=cost.latency_seconds(cluster),
        finish=cost.flops / product_rate(cluster) if cost.flops else 0.0,
        saved=spared_seconds(exchange, bucket, cluster),
        priority=bucket.priority,
        messages=cost.messages,
    )


def _ready_after(parameter: Parameter) -> int:
    return -1 if parameter.ready_after is None else parameter.ready_after
