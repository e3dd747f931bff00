"""One training iteration on a cluster, event by event: how computing and messages overlap."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from pycaffe_dist.comm.measured import NO_CONTENTION, Contention
from pycaffe_dist.config import Overlap

# With messages during forward, the number of iterations until they repeat.
_SETTLING = 2


@dataclass(frozen=True)
class Transfer:
    """Messages that start when backward has passed layer ``after``, or when it has ended (None).

    They occupy the wire for ``wire`` seconds and arrive ``latency`` seconds later.  ``finish``
    seconds of computing follow once somebody waits for them; backward of layer ``layer`` takes
    ``saved`` seconds less.  Of the transfers that wait for the wire, the lowest ``priority`` goes
    first.  A transfer has ``messages`` messages, one after the other.
    """

    layer: int
    after: int | None
    wire: float
    latency: float
    finish: float = 0.0
    saved: float = 0.0
    priority: int = 0
    messages: float = 0.0


@dataclass(frozen=True)
class Update:
    """A parameter's update: its seconds, and the numbers of the transfers before it.

    ``layer`` is the first that uses the parameter.
    """

    seconds: float
    transfers: tuple[int, ...] = ()
    layer: int = 0


@dataclass(frozen=True)
class Iteration:
    """The seconds of one iteration: in total, of computing, and of waiting for messages.

    ``wire`` is the time of the messages alone.
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
    *,
    overlap: Overlap = Overlap.BACKWARD,
    contention: Contention = NO_CONTENTION,
) -> Iteration:
    """Run one iteration of a rank while all other ranks do the same.

    ``forward`` and ``backward`` are each layer's seconds; the last of ``passes`` passes sends.
    ``transfers`` are in the order of sending, ``updates`` in the solver's order.  The wire carries
    one transfer after the other.
    """
    spared = [0.0] * len(backward)
    for transfer in transfers:
        spared[transfer.layer] += transfer.saved
    machine = _Machine(contention, transfers)
    left = [max(0.0, seconds - saved) for seconds, saved in zip(backward, spared)]
    run = _Run(machine, forward, left, transfers, updates)
    before = machine.state()
    for _ in range(1 if overlap is Overlap.BACKWARD else 1 + _SETTLING):
        before = machine.state()
        run.iteration(passes, overlap)
    total, computing, waiting = (new - old for new, old in zip(machine.state(), before))
    return Iteration(total, computing, waiting, sum(transfer.wire for transfer in transfers))


class _Machine:
    """A rank that computes and a wire that carries transfers, each at its own rate."""

    def __init__(self, contention: Contention, transfers: Sequence[Transfer]):
        self._contention = contention
        self._transfers = transfers
        self._now = self._computing = self._waiting = 0.0
        self._owed = 0.0  # the seconds by which messages delay the next computing
        self._queue: list[tuple[int, int, int]] = []  # a heap: priority, order, number
        self._orders = 0
        self._carried: tuple[int, float] | None = None  # its number and its latency
        self._left = 0.0  # the seconds that it still needs on the wire
        self.arrivals: dict[int, float] = {}

    def state(self) -> tuple[float, float, float]:
        """Return the time, and the seconds of computing and of waiting so far."""
        return self._now, self._computing, self._waiting

    def send(self, number: int) -> None:
        """Put a transfer in the queue for the wire."""
        self.arrivals.pop(number, None)
        self._owed += self._transfers[number].messages * self._contention.per_message
        heapq.heappush(self._queue, (self._transfers[number].priority, self._orders, number))
        self._orders += 1
        if self._carried is None:
            self._next()

    def has_arrived(self, number: int) -> bool:
        """Tell whether a transfer has arrived."""
        return self.arrivals.get(number, float("inf")) <= self._now

    def compute(self, seconds: float) -> None:
        """Do work that takes ``seconds`` without messages."""
        began, left = self._now, seconds + self._owed
        self._owed = 0.0
        while left > 0 and self._carried is not None:
            step = left / self._contention.computing
            if self._left / self._contention.wire < step:
                step = self._left / self._contention.wire
                left -= step * self._contention.computing
                self._advance(step, self._left)
            else:
                left = 0.0
                self._advance(step, step * self._contention.wire)
        self._now += left
        self._computing += self._now - began

    def wait(self, number: int) -> None:
        """Do nothing until a transfer has arrived."""
        began = self._now
        self._owed = 0.0  # a core is free for messages; the latency includes it
        while number not in self.arrivals:
            self._advance(self._left, self._left)
        until = self.arrivals[number]
        while self._carried is not None and self._now + self._left <= until:
            self._advance(self._left, self._left)
        if self._now < until:
            carried = min(until - self._now, self._left)
            self._left -= carried
            self._now = until
        self._waiting += self._now - began

    def _advance(self, seconds: float, carried: float) -> None:
        """Let time pass; the wire carries ``carried`` seconds of its work."""
        self._now += seconds
        self._left -= carried
        if self._left <= 1e-15 and self._carried is not None:
            number, latency = self._carried
            self.arrivals[number] = self._now + latency
            self._carried = None
            self._next()

    def _next(self) -> None:
        if self._queue:
            *_, number = heapq.heappop(self._queue)
            self._carried = number, self._transfers[number].latency
            self._left = self._transfers[number].wire
            if self._left <= 0:
                self._advance(0.0, 0.0)


class _Run:
    """Iterations of one rank."""

    def __init__(
        self,
        machine: _Machine,
        forward: Sequence[float],
        backward: Sequence[float],
        transfers: Sequence[Transfer],
        updates: Sequence[Update],
    ):
        self._machine = machine
        self._forward, self._backward = forward, backward
        self._transfers, self._updates = transfers, updates
        self._late: list[Update] = []
        self._unfinished: set[int] = set()

    def iteration(self, passes: int, overlap: Overlap) -> None:
        """Run forward, backward and the updates, now or in the next forward."""
        machine = self._machine
        for number in range(passes):
            for layer, seconds in enumerate(self._forward):
                for update in [late for late in self._late if late.layer == layer]:
                    self._use_the_time(update)
                    self._make(update)
                machine.compute(seconds)
            if number < passes - 1:
                machine.compute(sum(self._backward))
        for layer in reversed(range(len(self._backward))):
            machine.compute(self._backward[layer])
            self._send(layer)
        self._send(None)
        self._unfinished = set(range(len(self._transfers)))
        self._late = list(self._updates)
        if overlap is Overlap.BACKWARD:
            for update in self._updates:
                self._make(update)

    def _send(self, passed: int | None) -> None:
        for number, transfer in enumerate(self._transfers):
            if transfer.after == passed:
                self._machine.send(number)

    def _use_the_time(self, awaited: Update) -> None:
        """Make updates whose transfers have arrived, until the transfers of ``awaited`` arrive."""
        while not self._can(awaited):
            ready = [late for late in self._late if late is not awaited and self._can(late)]
            if not ready:
                return
            self._make(ready[0])

    def _can(self, update: Update) -> bool:
        return all(map(self._machine.has_arrived, update.transfers))

    def _make(self, update: Update) -> None:
        for number in update.transfers:
            self._machine.wait(number)
            if number in self._unfinished:
                self._unfinished.remove(number)
                self._machine.compute(self._transfers[number].finish)
        self._machine.compute(update.seconds)
        self._late.remove(update)
