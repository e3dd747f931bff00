"""Which exchange combines which parameter: one row each, decided by rank 0 for all ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pycaffe_dist.errors import ClusterError

if TYPE_CHECKING:
    from pycaffe_dist.exchange.base import Exchange
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.runtime.cluster import Cluster

# What stands in the column of exchanges for parameters that no exchange combines.
STATISTICS = "mean"
NOTHING = "none"


@dataclass(frozen=True)
class Row:
    """What happens to one parameter: its exchange, the seconds predicted for it, and why."""

    key: str
    layer: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    exchange: str
    seconds: float
    reason: str


@dataclass(frozen=True)
class Plan:
    """One row for every parameter, in the order of the net."""

    rows: tuple[Row, ...]

    def row(self, parameter: Parameter) -> Row:
        """Return a parameter's row; raises ClusterError when it has none."""
        for row in self.rows:
            if row.key == parameter.key:
                return row
        raise ClusterError(f"parameter {parameter.key} has no row in the exchange plan")

    def table(self) -> str:
        """Return the rows as aligned text, with a heading and the sum."""
        lines = [("parameter", "shape", "KiB", "exchange", "ms", "reason")]
        lines += [
            (
                row.key,
                "x".join(map(str, row.shape)) or "scalar",
                f"{row.nbytes / 1024:.1f}",
                row.exchange,
                f"{row.seconds * 1e3:.3g}",
                row.reason,
            )
            for row in self.rows
        ]
        moved = sum(row.nbytes for row in self.rows if row.exchange not in (STATISTICS, NOTHING))
        seconds = sum(row.seconds for row in self.rows)
        lines.append(("sum", "", f"{moved / 1024:.1f}", "", f"{seconds * 1e3:.3g}", ""))
        widths = [max(map(len, column)) for column in zip(*lines)]
        left = (True, True, False, True, False, True)
        return "\n".join(
            "  ".join(
                cell.ljust(width) if to_left else cell.rjust(width)
                for cell, width, to_left in zip(line, widths, left)
            ).rstrip()
            for line in lines
        )

    def to_bytes(self) -> bytes:
        """Return the plan as JSON."""
        return json.dumps([asdict(row) for row in self.rows]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Return the plan that :meth:`to_bytes` wrote."""
        return cls(
            tuple(Row(**fields | {"shape": tuple(fields["shape"])}) for fields in json.loads(data))
        )


def make_plan(parameters: Sequence[Parameter], exchange: Exchange, cluster: Cluster) -> Plan:
    """Return rank 0's plan, on all ranks.

    Raises ClusterError when ``exchange`` cannot combine a parameter, or when this rank's parameters
    are not those of rank 0.
    """
    cluster.link()  # all ranks measure together, before rank 0 predicts
    data = None
    if cluster.rank == 0:
        data = Plan(
            tuple(_row(parameter, exchange, cluster) for parameter in parameters)
        ).to_bytes()
    plan = Plan.from_bytes(cluster.broadcast_bytes(data))
    _check(plan, parameters)
    return plan


def is_statistics(parameter: Parameter) -> bool:
    """Tell whether a parameter holds a layer's running statistics, which have no gradient."""
    blobs = parameter.layer.statistics_blobs()
    return not parameter.receives_gradient and any(blob is parameter.blob for blob in blobs)


def _row(parameter: Parameter, exchange: Exchange, cluster: Cluster) -> Row:
    seconds = 0.0
    if is_statistics(parameter):
        name, reason = STATISTICS, "running statistics: mean before test and snapshot"
    elif not parameter.receives_gradient:
        name, reason = NOTHING, "has no gradient"
    else:
        name, reason = exchange.type, "as asked"
        refusal = exchange.supports(parameter, cluster)
        if refusal is not None:
            raise ClusterError(f"--exchange={name} cannot combine {parameter.key}: {refusal}")
        seconds = exchange.cost(parameter, cluster)
    blob = parameter.blob
    nbytes = blob.count * blob.dtype.itemsize
    return Row(
        key=parameter.key,
        layer=parameter.layer_name,
        shape=tuple(parameter.shape),
        dtype=blob.dtype.name,
        nbytes=nbytes,
        exchange=name,
        seconds=seconds,
        reason=reason,
    )


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
                f"this rank's net differs from rank 0's: {_describe(ours)} instead of "
                f"{_describe(theirs)}"
            )
    if len(found) != len(planned):
        raise ClusterError(
            f"this rank's net has {len(found)} parameters, rank 0's has {len(planned)}"
        )


def _describe(parameter: tuple) -> str:
    key, shape, dtype, statistics = parameter
    return f"{key} {shape} {dtype}{' (statistics)' if statistics else ''}"
