"""Chooses exchanges that together make the shortest iteration, by simulating it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pycaffe_dist.config import Overlap
from pycaffe_dist.runtime.shipping import shipments_of
from pycaffe_dist.runtime.simulation import Iteration, Transfer, Update, simulate

if TYPE_CHECKING:
    from pycaffe_dist.exchange.base import Exchange, Shipment
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.runtime.cluster import Cluster

# A choice must shorten the iteration by more than this part of it: less is not predictable.
_WORTHWHILE = 0.003
# So many of the largest parameters are tried one by one; the others follow.
_MOST_TRIED = 48
# What fuses parameters is tried with these sizes of what travels together.
_BUCKET_BYTES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
# No exchange combines a parameter without a gradient.
_NONE = ""


@dataclass(frozen=True)
class Times:
    """The seconds that one rank computes per layer, forward and backward, and in all updates."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    update: float


@dataclass(frozen=True)
class Workload:
    """What a rank computes in an iteration of so many passes, and until when messages may go on."""

    times: Times
    passes: int = 1
    overlap: Overlap = Overlap.BACKWARD


def best_together(
    parameters: Sequence[Parameter],
    exchanges: Sequence[Exchange],
    costs: Mapping[str, Mapping[str, float]],
    workload: Workload,
    cluster: Cluster,
) -> tuple[dict[str, str], int]:
    """Return the exchange of every parameter that has one, by its key, and the bytes of a bucket.

    ``costs`` are the seconds that each would take on its own, of those that are possible.  Better
    ones are looked for from the best of a few beginnings on: each exchange wherever it is possible,
    and for each parameter the one that takes the least time on its own; all with several sizes of
    buckets.
    """
    cheapest = {key: min(of, key=of.__getitem__, default=_NONE) for key, of in costs.items()}

    def total(choice: Mapping[str, str]) -> float:
        return predicted(choice, parameters, exchanges, workload, cluster).total

    beginnings = [
        {key: kind.type if kind.type in of else cheapest[key] for key, of in costs.items()}
        for kind in exchanges
    ]
    tried = []
    for bucket_bytes in _BUCKET_BYTES:
        use_buckets(exchanges, bucket_bytes)
        tried += [(total(choice), bucket_bytes, choice) for choice in (cheapest, *beginnings)]
    seconds, bucket_bytes, best = min(tried, key=lambda one: one[:2])
    use_buckets(exchanges, bucket_bytes)
    by_size = sorted(parameters, key=lambda parameter: -parameter.blob.count)
    open_ones = [p.key for p in by_size if len(costs[p.key]) > 1][:_MOST_TRIED]
    for key in open_ones:
        for name in costs[key]:
            changed = {**best, key: name}
            if name != best[key] and (found := total(changed)) < seconds * (1 - _WORTHWHILE):
                best, seconds = changed, found
    return {key: name for key, name in best.items() if name}, bucket_bytes


def use_buckets(exchanges: Sequence[Exchange], bucket_bytes: int) -> None:
    """Let exchanges fuse what has at most so many bytes together."""
    for exchange in exchanges:
        exchange.settings = replace(exchange.settings, bucket_bytes=bucket_bytes)


def predicted(
    choice: Mapping[str, str],
    parameters: Sequence[Parameter],
    exchanges: Sequence[Exchange],
    workload: Workload,
    cluster: Cluster,
) -> Iteration:
    """Return the iteration in which each parameter takes the exchange that ``choice`` names."""
    sent = []
    if cluster.size > 1:
        sent = shipments_of(choice, parameters, exchanges, workload.overlap)
    transfers = [_transfer(exchange, shipment, cluster) for exchange, shipment in sent]
    numbers: dict[str, list[int]] = {parameter.key: [] for parameter in parameters}
    for number, (_, shipment) in enumerate(sent):
        for piece in shipment.pieces:
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
        contention=cluster.contention(),
    )


def spared_seconds(exchange: Exchange, shipment: Shipment, cluster: Cluster) -> float:
    """Return the seconds that a shipment spares the backward of its layer."""
    flops = exchange.load(shipment.pieces, cluster).saved_flops
    return flops / cluster.product_rate() if flops else 0.0


def _transfer(exchange: Exchange, shipment: Shipment, cluster: Cluster) -> Transfer:
    load = exchange.load(shipment.pieces, cluster)
    # Several parameters are complete with the one that backward comes to last.
    last = min((piece.parameter for piece in shipment.pieces), key=_ready_after)
    return Transfer(
        layer=last.layer_index,
        after=_ready_after(last) if exchange.during_backward else None,
        wire=load.wire_seconds(cluster) + (load.copied and load.copied / cluster.copy_rate()),
        latency=load.latency_seconds(cluster),
        finish=load.flops / cluster.product_rate() if load.flops else 0.0,
        saved=spared_seconds(exchange, shipment, cluster),
        priority=shipment.priority,
        messages=load.messages,
    )


def _ready_after(parameter: Parameter) -> int:
    return -1 if parameter.ready_after is None else parameter.ready_after
