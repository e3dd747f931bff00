"""Measurements of a cluster, which keeps them; `pycaffe_dist.calibration` makes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """The slowest link between ranks that exchange data.

    ``latency`` in seconds for a message of one byte; ``bandwidth`` in bytes per second that a rank
    sends while it receives as many.
    """

    latency: float
    bandwidth: float

    def __str__(self) -> str:
        return f"latency {self.latency * 1e6:.0f} us, {self.bandwidth / 1e6:.0f} MB/s"


@dataclass(frozen=True)
class Contention:
    """The rates of computing and of the wire while both are in use, as fractions (0 to 1) of alone.

    A message takes ``per_message`` seconds from a rank that computes, however small it is.
    """

    computing: float = 1.0
    wire: float = 1.0
    per_message: float = 0.0


NO_CONTENTION = Contention()


@dataclass
class Measured:
    """Measurements of a cluster; None stands for one that is made at its first use.

    The rates are the slowest rank's: ``product_rate`` in FLOP/s of matrix products, ``copy_rate``
    in bytes per second read and written.
    """

    link: Link | None = None
    contention: Contention | None = None
    product_rate: float | None = None
    copy_rate: float | None = None
