"""Memory that arrays use in turns: which of them can have the same place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tenant:
    """Something that needs ``size`` elements in some spans of time, (first, last) inclusive."""

    size: int
    spans: tuple[tuple[int, int], ...]

    def meets(self, other: Tenant) -> bool:
        """Tell whether both need memory at some time."""
        return any(
            first <= stop and start <= last
            for first, last in self.spans
            for start, stop in other.spans
        )


def assign(tenants: Sequence[Tenant]) -> list[int]:
    """Return the number of each tenant's slot; no two in a slot meet."""
    slots: list[list[Tenant]] = []
    found = [0] * len(tenants)
    # The largest first: they determine the sizes, and the others fill the gaps.
    for index in sorted(range(len(tenants)), key=lambda index: -tenants[index].size):
        tenant = tenants[index]
        free = (n for n, others in enumerate(slots) if not any(map(tenant.meets, others)))
        number = next(free, len(slots))
        if number == len(slots):
            slots.append([])
        slots[number].append(tenant)
        found[index] = number
    return found
