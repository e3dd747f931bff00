"""How far a command has come: the text of the last line on a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pycaffe_dist import log
from pycaffe_dist.launch import messages

if TYPE_CHECKING:
    from pycaffe_dist.solvers import Solver

# Seconds between two texts, and until older iterations count half in the images per second.
_INTERVAL = 0.5
_HALVING = 5.0
# The least share of the time for which waiting is shown.
_NOTABLE = 0.01


class Progress:
    """Shows iterations, loss, images/s, time left and waiting, inside a ``with``, by `log.status`.

    Call it with the solver after every iteration.  Only rank 0 shows anything.  Started by pcaffe
    launch, it sends the text to the launcher, which shows it, since mpirun passes on whole lines
    only.
    """

    def __init__(self) -> None:
        self._due = 0.0
        self._meter: _Meter | None = None

    def __enter__(self) -> Progress:
        return self

    def __call__(self, solver: Solver) -> None:
        """Show that the solver has finished an iteration."""
        now = time.monotonic()
        if now < self._due or solver.cluster.rank:
            return
        self._due = now + _INTERVAL
        if self._meter is None or not self._meter.follows(solver):
            self._meter = _Meter(solver, now)
        else:
            _show(self._meter.read(now))

    def __exit__(self, *details: object) -> None:
        if self._meter is not None:
            _show("")


class Counter:
    """Shows how many of ``total`` things, named by ``unit``, are done, inside a ``with``."""

    def __init__(self, total: int, unit: str):
        self._total, self._unit, self._done = total, unit, 0
        self._began = self._due = time.monotonic()

    def __enter__(self) -> Counter:
        return self

    def update(self, count: int = 1) -> None:
        """Count some more."""
        self._done += count
        now = time.monotonic()
        if now < self._due + _INTERVAL:
            return
        self._due = now
        rate = self._done / (now - self._began)
        left = _clock((self._total - self._done) / rate)
        done = f"{self._done}/{self._total} {self._unit}"
        log.status(f"{done}, {rate:.0f} {self._unit}/s, {left} left")

    def __exit__(self, *details: object) -> None:
        log.status("")


def _show(text: str) -> None:
    if not messages.report(messages.PROGRESS, text):
        log.status(text)


class _Meter:
    """Measures a solver's speed from ``now`` on."""

    def __init__(self, solver: Solver, now: float):
        self._solver = solver
        self._first = self._last = self._sample(now)
        self._rate = 0.0

    def follows(self, solver: Solver) -> bool:
        """Tell whether this is the solver, and it has not gone back to an earlier iteration."""
        return solver is self._solver and solver.iteration >= self._last[0]

    def read(self, now: float) -> str:
        """Return the run's state in words."""
        solver, before = self._solver, self._last
        self._last = iteration, _, data, gradients = self._sample(now)
        passed = max(now - before[1], 1e-9)
        rate = (iteration - before[0]) / passed
        older = 0.5 ** (passed / _HALVING) if self._rate else 0.0
        self._rate = older * self._rate + (1 - older) * rate
        parts = [f"{iteration}/{solver.param.max_iter} iterations"]
        if solver.state.losses.recent:
            parts.append(f"loss {log.fmt(solver.state.losses.mean)}")
        parts.append(f"{solver.effective_batch * self._rate:.0f} images/s")
        done = iteration - self._first[0]
        if done:
            mean = (now - self._first[1]) / done
            parts.append(f"{_clock(mean * (solver.param.max_iter - iteration))} left")
        for what, seconds in (("data", data - before[2]), ("gradients", gradients - before[3])):
            if seconds / passed >= _NOTABLE:
                parts.append(f"waiting for {what} {100 * seconds / passed:.0f} %")
        return ", ".join(parts)

    def _sample(self, now: float) -> tuple[int, float, float, float]:
        """Return iterations, the time, and the seconds of waiting for data and for messages."""
        solver = self._solver
        data = sum(layer.seconds_waited for layer in solver.net.layers)
        return solver.iteration, now, data, solver.engine.seconds_waited


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
