"""Distributes the records of a data set among ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pycaffe_dist.errors import UsageError

UNITS = ("record", "batch")


def share(batch_size: int, rank: int, ranks: int) -> int:
    """Return the records of a rank in a batch that the ranks share: each has as many, or one more.

    It is the number of the records r, r+P, … below ``batch_size``.
    """
    return len(range(rank, batch_size, ranks))


def partition_name(path: str, rank: int) -> str:
    """Return the name of a rank's own part of the data set ``path``."""
    return f"{path.rstrip('/')}_{rank}"


@dataclass(frozen=True)
class Shard:
    """One rank's part of an endless stream of records (the data set, repeated).

    ``unit="record"``: rank r of P reads records r, r+P, r+2P, …, so that P ranks with batch size b
    see in each iteration exactly the samples that one rank with batch size P·b would see.
    ``unit="batch"``: rank r reads whole batches r, r+P, r+2P, … (tests that are spread over ranks).
    Both also hold across the end of the data set, even if P does not divide its length.  Counting
    starts at record ``origin``: a run that continues with another number of ranks distributes the
    remaining records anew.  ``together`` is the size of all ranks' batches, if these differ: rank r
    then has a `share` of it (``unit="record"`` only).
    """

    rank: int = 0
    size: int = 1
    unit: str = "record"
    origin: int = 0
    together: int = 0

    def __post_init__(self):
        if not 0 <= self.rank < self.size:
            raise UsageError(f"a shard's rank must be in [0, {self.size}), found {self.rank}")
        if self.unit not in UNITS:
            raise UsageError(f"a shard's unit must be one of {UNITS}, found '{self.unit}'")

    @property
    def step(self) -> int:
        """The distance between two neighbouring records of one batch."""
        return self.size if self.unit == "record" else 1

    @property
    def contiguous(self) -> bool:
        """Whether a rank's next batch begins one step after the end of its last one."""
        return (self.unit == "record" and not self.together) or self.size == 1

    def total(self, batch_size: int) -> int:
        """Return the number of records in one batch of every rank; this rank's is given."""
        return self.together or batch_size * self.size

    @property
    def weight(self) -> float:
        """What a mean over this rank's batch counts in the mean over ranks: 1 for equal batches."""
        if not self.together:
            return 1.0
        return share(self.together, self.rank, self.size) * self.size / self.together

    def alone(self) -> Shard:
        """Return the shard of a rank with its own data set that continues at this place."""
        return Shard(origin=self.origin // self.size)

    def first_record(self, batch: int, batch_size: int) -> int:
        """Return the stream index of the first record of this rank's batch number ``batch``."""
        if self.unit == "record":
            return self.origin + batch * self.total(batch_size) + self.rank
        return self.origin + (batch * self.size + self.rank) * batch_size


@dataclass(frozen=True)
class Place:
    """A rank's place in its stream: its next batch has the number ``batch``.

    ``next_record`` is the first record that no rank has read, as far as this rank knows: all ranks
    read the same number of batches, except of a stream that is shared batch by batch.
    """

    origin: int
    batch: int
    batch_size: int
    next_record: int

    @classmethod
    def of(cls, shard: Shard, batch: int, batch_size: int) -> Place:
        """Return the place of a rank that has read ``batch`` batches of ``shard``."""
        first = replace(shard, rank=0) if shard.unit == "record" else shard
        return cls(shard.origin, batch, batch_size, first.first_record(batch, batch_size))


def continued(shard: Shard, batch_size: int, places: Sequence[Place]) -> tuple[Shard, int]:
    """Return the shard and batch number with which a rank continues an earlier run.

    ``places`` has the places of all ranks of that run.  With the same number of ranks and samples
    the rank continues with exactly its own next batch; else the ranks share the records from the
    first unread one on.
    """
    together = sum(place.batch_size for place in places)
    if len(places) == shard.size and together == shard.total(batch_size):
        mine = places[shard.rank]
        return replace(shard, origin=mine.origin), mine.batch
    return replace(shard, origin=min(place.next_record for place in places)), 0
