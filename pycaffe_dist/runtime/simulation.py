"""One training iteration on a cluster that one does not have, event by event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Transfer:
    """Messages that start when backward has passed layer ``after``, or when it has ended (None).

    They occupy the wire for ``wire`` seconds and arrive ``latency`` seconds later.  ``finish``
    seconds of computing follow once somebody waits for them; ``saved`` seconds are what backward of
    layer ``layer`` is spared.
    """

    layer: int
    after: int | None
    wire: float
    latency: float
    finish: float = 0.0
    saved: float = 0.0


@dataclass(frozen=True)
class Update:
    """A parameter's update: it takes so many seconds, after these transfers (their numbers)."""

    seconds: float
    transfers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Iteration:
    """What one iteration takes, in seconds: altogether, computing, and waiting for messages.

    ``wire`` is how long the wire was in use.
    """

    total: float
    computing: float
    waiting: float
    wire: float


def simulate(
    forward: Sequence[float],
    backward: Sequence[float],
    transfers: Sequence[Transfer],
    updates: Sequence[Update],
    passes: int = 1,
) -> Iteration:
    """Run one iteration of a rank whose others do the same at the same time.

    ``forward`` and ``backward`` are each layer's seconds; of ``passes`` passes the last one sends.
    ``transfers`` come in the order in which they are sent, ``updates`` in that of the solver.  The
    wire carries one transfer after the other, while layers compute undisturbed.
    """
    spared = [0.0] * len(backward)
    for transfer in transfers:
        spared[transfer.layer] += transfer.saved
    now = (passes - 1) * (sum(forward) + sum(backward)) + sum(forward)
    passed = [0.0] * len(backward)
    for layer in reversed(range(len(backward))):
        now += max(0.0, backward[layer] - spared[layer])
        passed[layer] = now
    arrivals = _arrivals(transfers, passed, now)
    waiting = 0.0
    computing = now
    unfinished = set(range(len(transfers)))
    for update in updates:
        for number in update.transfers:
            waiting += max(0.0, arrivals[number] - now)
            now = max(now, arrivals[number])
            if number in unfinished:
                unfinished.remove(number)
                now += transfers[number].finish
                computing += transfers[number].finish
        now += update.seconds
        computing += update.seconds
    return Iteration(now, computing, waiting, sum(transfer.wire for transfer in transfers))


def _arrivals(
    transfers: Sequence[Transfer], passed: Sequence[float], end: float
) -> dict[int, float]:
    """Return when each transfer has arrived; ``passed`` says when backward leaves a layer."""
    ready = [end if transfer.after is None else passed[transfer.after] for transfer in transfers]
    free = 0.0
    arrivals = {}
    for number in sorted(range(len(transfers)), key=lambda number: (ready[number], number)):
        free = max(free, ready[number]) + transfers[number].wire
        arrivals[number] = free + transfers[number].latency
    return arrivals
