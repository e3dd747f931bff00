"""Which records of a data set each rank reads."""

from __future__ import annotations

from dataclasses import dataclass

from pycaffe_dist.errors import UsageError

UNITS = ("record", "batch")


@dataclass(frozen=True)
class Shard:
    """One rank's part of an endless stream of records (the data set over and over again).

    ``unit="record"``: rank r of P reads records r, r+P, r+2P, …, so that P ranks with batch size b
    see in each iteration exactly the samples that one rank with batch size P·b would see.
    ``unit="batch"``: rank r reads whole batches r, r+P, r+2P, … (tests that are spread over ranks).
    Either holds across the end of the data set, whether or not P divides its length.
    """

    rank: int = 0
    size: int = 1
    unit: str = "record"

    def __post_init__(self):
        if not 0 <= self.rank < self.size:
            raise UsageError(f"a shard's rank must be in [0, {self.size}), found {self.rank}")
        if self.unit not in UNITS:
            raise UsageError(f"a shard's unit must be one of {UNITS}, found '{self.unit}'")

    @property
    def step(self) -> int:
        """The distance between two neighbouring records of one batch."""
        return self.size if self.unit == "record" else 1

    def first_record(self, batch: int, batch_size: int) -> int:
        """Return the stream index of the first record of this rank's batch number ``batch``."""
        if self.unit == "record":
            return batch * batch_size * self.size + self.rank
        return (batch * self.size + self.rank) * batch_size
