"""What travels together, in which order, and how urgent it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pycaffe_dist.config import Overlap
from pycaffe_dist.exchange.base import Bucket

if TYPE_CHECKING:
    from pycaffe_dist.exchange.base import Exchange, Slice
    from pycaffe_dist.net.parameter import Parameter


def buckets_of(
    choice: Mapping[str, str],
    parameters: Sequence[Parameter],
    exchanges: Sequence[Exchange],
    overlap: Overlap = Overlap.BACKWARD,
) -> list[tuple[Exchange, Bucket]]:
    """Return what travels together, and how, in the order in which backward completes it.

    ``choice`` has an exchange's type by the parameter's key, if one combines it.  When messages may
    go on during forward, what forward needs first is the most urgent.
    """
    # Backward goes through the net from its end; a group is complete with its last member.
    place = {parameter.key: number for number, parameter in enumerate(reversed(parameters))}
    groups = [
        (exchange, tuple(group))
        for exchange in exchanges
        for group in exchange.group(
            [p for p in reversed(parameters) if choice.get(p.key) == exchange.type]
        )
    ]
    groups.sort(key=lambda pair: max(place[piece.parameter.key] for piece in pair[1]))
    return [
        (exchange, Bucket(group, number, _priority(exchange, group, overlap)))
        for number, (exchange, group) in enumerate(groups)
    ]


def _priority(exchange: Exchange, group: Sequence[Slice], overlap: Overlap) -> int:
    if exchange.in_order or overlap is Overlap.BACKWARD:
        return 0
    return min(layer for piece in group for layer, _ in piece.parameter.sharers)
