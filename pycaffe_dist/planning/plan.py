"""The exchange of each parameter: one row for each, decided by rank 0 for all ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from pycaffe_dist.calibration.contention import contention_of
from pycaffe_dist.calibration.copies import copy_rate
from pycaffe_dist.calibration.link import link_of
from pycaffe_dist.calibration.products import product_rate
from pycaffe_dist.config import Overlap
from pycaffe_dist.errors import ClusterError
from pycaffe_dist.exchange.base import AUTO, Bucket
from pycaffe_dist.exchange.schedule import buckets_of
from pycaffe_dist.planning.search import Choice, Workload, best_together, use_buckets
from pycaffe_dist.table import aligned

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.exchange.base import Exchange
    from pycaffe_dist.net.parameter import Parameter

# The entry in the column of exchanges for parameters without an exchange.
STATISTICS = "mean"
NOTHING = "none"


@dataclass(frozen=True)
class Row:
    """The plan for one parameter: its exchange, the predicted seconds, and the reason.

    ``runner_up`` is the second choice, with ``runner_up_seconds``; empty if there is none.
    """

    key: str
    layer: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    exchange: str
    seconds: float
    runner_up: str
    runner_up_seconds: float
    reason: str


@dataclass(frozen=True)
class Plan:
    """One row for every parameter, in the order of the net.

    Small parameters share buckets of at most ``bucket_bytes``.
    """

    rows: tuple[Row, ...]
    bucket_bytes: int

    def row(self, parameter: Parameter) -> Row:
        """Return a parameter's row; raises ClusterError when it has none."""
        for row in self.rows:
            if row.key == parameter.key:
                return row
        raise ClusterError(f"parameter {parameter.key} has no row in the exchange plan")

    @property
    def choice(self) -> dict[str, str]:
        """The name in the column of exchanges, by the parameter's key."""
        return {row.key: row.exchange for row in self.rows}

    def is_like(self, other: Plan) -> bool:
        """Whether another plan has the same buckets and the same exchanges."""
        return (self.choice, self.bucket_bytes) == (other.choice, other.bucket_bytes)

    def table(self) -> str:
        """Return the rows as aligned text, with a heading and the sum."""
        lines = [("parameter", "shape", "KiB", "exchange", "ms", "runner-up", "ms", "reason")]
        lines += [
            (
                row.key,
                "x".join(map(str, row.shape)) or "scalar",
                f"{row.nbytes / 1024:.1f}",
                row.exchange,
                f"{row.seconds * 1e3:.3g}",
                row.runner_up,
                f"{row.runner_up_seconds * 1e3:.3g}" if row.runner_up else "",
                row.reason,
            )
            for row in self.rows
        ]
        moved = sum(row.nbytes for row in self.rows if row.exchange not in (STATISTICS, NOTHING))
        seconds = sum(row.seconds for row in self.rows)
        buckets = f"together up to {self.bucket_bytes / 1024:.0f} KiB"
        lines.append(
            ("sum", "", f"{moved / 1024:.1f}", "", f"{seconds * 1e3:.3g}", "", "", buckets)
        )
        return aligned(lines, left=(0, 1, 3, 5, 7))

    def to_bytes(self) -> bytes:
        """Return the plan as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Return the plan that :meth:`to_bytes` wrote."""
        return cls.of(json.loads(data))

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Plan:
        """Return the plan of a dictionary."""
        rows = [Row(**row | {"shape": tuple(row["shape"])}) for row in fields["rows"]]
        return cls(tuple(rows), fields["bucket_bytes"])


def make_plans(
    parameters: Sequence[Parameter],
    exchanges: Sequence[Exchange],
    cluster: Cluster,
    wanted: str = AUTO,
    workload: Workload | None = None,
) -> list[Plan]:
    """Return rank 0's plans, on all ranks; the first one is predicted to be the best.

    ``wanted`` is the value of --exchange: "auto", or the name of the first of ``exchanges``, which
    then combines all parameters that it can. "auto" chooses for each parameter the exchange that is
    fastest alone.  With rank 0's ``workload`` it chooses exchanges that together make the shortest
    iteration; then there may be several plans, because predictions are not exact enough to tell
    close ones apart. ``exchanges`` are left as the first plan needs them. Raises ClusterError when
    ``wanted`` can combine no parameter, or when this rank's parameters differ from rank 0's.
    """
    if wanted == AUTO:
        exchanges = [exchange for exchange in exchanges if exchange.may_help(cluster)]
    # All ranks measure together, before rank 0 predicts.
    link_of(cluster)
    if any(exchange.computes for exchange in exchanges):
        product_rate(cluster)
    if any(exchange.copies for exchange in exchanges) and len(set(cluster.hosts)) < cluster.size:
        copy_rate(cluster)
    if workload is not None:
        contention_of(cluster)
    differences = _differences(parameters, exchanges, cluster)
    data = None
    if cluster.rank == 0:
        costs, refusals = _costs(parameters, exchanges, cluster, differences)
        choices = [Choice({}, exchanges[0].settings.bucket_bytes)]
        if workload is not None and wanted == AUTO:
            choices = best_together(parameters, exchanges, costs, workload, cluster)
        made = []
        for choice in choices:
            rows = [_row(p, costs, refusals, wanted, choice.exchanges) for p in parameters]
            made.append(asdict(Plan(tuple(rows), choice.bucket_bytes)))
        data = json.dumps(made).encode()
    plans = [Plan.of(fields) for fields in json.loads(cluster.broadcast_bytes(data))]
    for plan in plans:
        _require_one(wanted, plan.rows)
        _check(plan, parameters)
    use_buckets(exchanges, plans[0].bucket_bytes)
    return plans


def make_plan(
    parameters: Sequence[Parameter],
    exchanges: Sequence[Exchange],
    cluster: Cluster,
    wanted: str = AUTO,
    workload: Workload | None = None,
) -> Plan:
    """Return the first plan of :meth:`make_plans`."""
    return make_plans(parameters, exchanges, cluster, wanted, workload)[0]


def known_plan(
    data: bytes, parameters: Sequence[Parameter], exchanges: Sequence[Exchange], cluster: Cluster
) -> Plan | None:
    """Return an earlier plan, the same on all ranks, or None if it does not fit."""
    plan = Plan.from_bytes(data)
    refused = [
        parameter.key
        for parameter in parameters
        for exchange in exchanges
        if plan.choice.get(parameter.key) == exchange.type
        and exchange.supports(parameter, cluster) is not None
    ]
    known = {exchange.type for exchange in exchanges} | {STATISTICS, NOTHING}
    try:
        _check(plan, parameters)
    except ClusterError:
        return None
    if refused or not set(plan.choice.values()) <= known:
        return None
    use_buckets(exchanges, plan.bucket_bytes)
    return plan


def buckets(
    plan: Plan,
    parameters: Sequence[Parameter],
    exchanges: Sequence[Exchange],
    overlap: Overlap = Overlap.BACKWARD,
) -> list[tuple[Exchange, Bucket]]:
    """Return the buckets of a plan and their exchanges: see `buckets_of`."""
    return buckets_of(plan.choice, parameters, exchanges, overlap)


def messages_of(
    pairs: Sequence[tuple[Exchange, Bucket]], cluster: Cluster
) -> dict[str, dict[str, float]]:
    """Return messages by exchange and parameters, the slices of a large gradient together.

    Of each its ``count``, the ``bytes`` of its gradients, and ``predicted_ms``, the mean time that
    it is under way if nothing else is.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for exchange, bucket in pairs:
        cost = exchange.cost(bucket.slices, cluster)
        seconds = cost.latency_seconds(cluster) + cost.wire_seconds(cluster)
        name = f"{exchange.type} of {bucket.name}"
        found.setdefault(name, []).append((bucket.nbytes, seconds))
    return {
        name: {
            "count": len(parts),
            "bytes": sum(nbytes for nbytes, _ in parts),
            "predicted_ms": 1e3 * mean(seconds for _, seconds in parts),
        }
        for name, parts in found.items()
    }


def describe(cluster: Cluster, exchanges: Sequence[Exchange]) -> str:
    """Return the measurements that a plan is made from, in words."""
    measured, hosts = str(link_of(cluster)), len(set(cluster.hosts))
    if any(exchange.computes for exchange in exchanges):
        measured += f", {product_rate(cluster) / 1e9:.3g} GFLOP/s"
    measured = "; ".join([measured, *(text for each in exchanges if (text := each.measured()))])
    return f"{cluster.size} ranks on {hosts} host{'s' * (hosts > 1)} ({measured})"


def is_statistics(parameter: Parameter) -> bool:
    """Tell whether a parameter holds a layer's running statistics, which have no gradient."""
    blobs = parameter.layer.statistics_blobs()
    return not parameter.receives_gradient and any(blob is parameter.blob for blob in blobs)


def _differences(
    parameters: Sequence[Parameter], exchanges: Sequence[Exchange], cluster: Cluster
) -> dict[tuple[str, str], str]:
    """Return, by exchange and parameter, a fact that differs between ranks but must not."""
    facts = {
        f"{exchange.type} {parameter.key}": fact
        for exchange in exchanges
        for parameter in parameters
        if exchange.supports(parameter, cluster) is None and (fact := exchange.facts(parameter))
    }
    of_all = [json.loads(data) for data in cluster.gather_bytes(json.dumps(facts).encode())]
    found = {}
    for name, expected in of_all[0].items():
        for rank, theirs in enumerate(of_all):
            if theirs.get(name) != expected:
                exchange, key = name.split(" ", 1)
                found[exchange, key] = (
                    f"rank 0 has {expected}, rank {rank} {theirs.get(name, 'none')}"
                )
                break
    return found


def _costs(
    parameters: Sequence[Parameter],
    exchanges: Sequence[Exchange],
    cluster: Cluster,
    differences: dict[tuple[str, str], str],
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, str]]]:
    """Return, by parameter and exchange, the predicted seconds, or the reason of a refusal."""
    costs: dict[str, dict[str, float]] = {}
    refusals: dict[str, dict[str, str]] = {}
    for parameter in parameters:
        key = parameter.key
        costs[key], refusals[key] = {}, {}
        if is_statistics(parameter) or not parameter.receives_gradient:
            continue
        for exchange in exchanges:
            refusal = exchange.supports(parameter, cluster)
            refusal = refusal or differences.get((exchange.type, key))
            if refusal is None:
                costs[key][exchange.type] = exchange.seconds(parameter, cluster)
            else:
                refusals[key][exchange.type] = refusal
    return costs, refusals


def _row(
    parameter: Parameter,
    all_costs: Mapping[str, Mapping[str, float]],
    refusals: Mapping[str, Mapping[str, str]],
    wanted: str,
    together: Mapping[str, str],
) -> Row:
    costs = dict(all_costs[parameter.key])
    if is_statistics(parameter):
        name, reason = STATISTICS, "running statistics: mean before test and snapshot"
    elif not parameter.receives_gradient:
        name, reason = NOTHING, "has no gradient"
    elif parameter.key in together and len(costs) > 1:
        name = together[parameter.key]
        reason = "least time" if costs[name] <= min(costs.values()) else "hidden behind backward"
    else:
        name, reason = _choose(parameter, wanted, costs, refusals[parameter.key])
    seconds = costs.pop(name, 0.0)
    runner_up = min(costs, key=costs.__getitem__, default="")
    blob = parameter.blob
    return Row(
        key=parameter.key,
        layer=parameter.layer_name,
        shape=tuple(parameter.shape),
        dtype=blob.dtype.name,
        nbytes=blob.count * blob.dtype.itemsize,
        exchange=name,
        seconds=seconds,
        runner_up=runner_up,
        runner_up_seconds=costs.get(runner_up, 0.0),
        reason=reason,
    )


def _choose(
    parameter: Parameter,
    wanted: str,
    costs: Mapping[str, float],
    refusals: Mapping[str, str],
) -> tuple[str, str]:
    """Return the name of a parameter's exchange, and the reason."""
    if not costs:
        raise ClusterError(
            f"no exchange can combine {parameter.key}: {_in_words(refusals.items())}"
        )
    if wanted in costs:
        return wanted, "as asked"
    cheapest = min(costs, key=costs.__getitem__)
    if wanted in refusals:
        return cheapest, f"{wanted}: {refusals[wanted]}"
    if len(costs) > 1:
        return cheapest, "least time"
    return cheapest, _in_words(refusals.items()) or "the only choice"


def _in_words(refusals: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in refusals)


def _require_one(wanted: str, rows: Sequence[Row]) -> None:
    """Raise ClusterError when the wanted exchange combines nothing."""
    moved = [row for row in rows if row.exchange not in (STATISTICS, NOTHING)]
    if wanted == AUTO or not moved or any(row.exchange == wanted for row in moved):
        return
    found = [(row.key, row.reason.removeprefix(f"{wanted}: ")) for row in moved]
    of_all = {reason for _, reason in found}
    reasons = of_all.pop() if len(of_all) == 1 else _in_words(found)
    raise ClusterError(f"--exchange={wanted} can combine no parameter of this net: {reasons}")


def _check(plan: Plan, parameters: Sequence[Parameter]) -> None:
    """Compare this rank's parameters with the plan's."""
    planned = [(row.key, row.shape, row.dtype, row.exchange == STATISTICS) for row in plan.rows]
    found = [
        (
            parameter.key,
            tuple(parameter.shape),
            parameter.blob.dtype.name,
            is_statistics(parameter),
        )
        for parameter in parameters
    ]
    keys = [key for key, *_ in found]
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ClusterError(f"parameter {twice} is listed twice")
    for ours, theirs in zip(found, planned):
        if ours != theirs:
            raise ClusterError(
                f"this rank's net differs from rank 0's: {_in_short(ours)} instead of "
                f"{_in_short(theirs)}"
            )
    if len(found) != len(planned):
        raise ClusterError(
            f"this rank's net has {len(found)} parameters, rank 0's has {len(planned)}"
        )


def _in_short(parameter: tuple) -> str:
    key, shape, dtype, statistics = parameter
    return f"{key} {shape} {dtype}{' (statistics)' if statistics else ''}"
