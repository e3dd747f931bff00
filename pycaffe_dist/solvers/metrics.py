"""Records of a run, as plain values: starts, plans, displays, tests, snapshots; on rank 0.

Files and callbacks get the same ones: see docs/metrics.md.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.profiling import Kind, Span
from pycaffe_dist.schema import text
from pycaffe_dist.solvers.callbacks import Metrics
from pycaffe_dist.solvers.layer_metrics import LayerMetrics
from pycaffe_dist.solvers.testing import by_output

if TYPE_CHECKING:
    from pycaffe_dist.solvers.solver import Solver

_DIGITS = 7
_LARGE = 10.0**_DIGITS
_UPDATING = (Kind.UPDATE, Kind.REBUILD)
_SUMMED = (Kind.FORWARD, Kind.BACKWARD, *_UPDATING)


class SpanSums:
    """Adds up the seconds of spans by kind and name; call it with spans."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], float] = defaultdict(float)
        # Messages' number, seconds and bytes, by name.
        self._messages: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])

    def __call__(self, spans: Sequence[Span]) -> None:
        """Take spans."""
        for kind, name, started, ended, nbytes in spans:
            if kind in _SUMMED:
                self._seconds[kind, name] += ended - started
            elif kind == Kind.EXCHANGE:
                sums = self._messages[name]
                sums[0] += 1
                sums[1] += ended - started
                sums[2] += nbytes

    def take(self) -> dict[tuple[str, str], float]:
        """Return the seconds since the last call."""
        seconds = dict(self._seconds)
        self._seconds.clear()
        return seconds

    def take_messages(self) -> Metrics:
        """Return the mean milliseconds and bytes of messages since the last call, by name."""
        found = {
            name.removeprefix("exchange "): {
                "ms": 1e3 * seconds / count,
                "bytes": round(nbytes / count),
            }
            for name, (count, seconds, nbytes) in self._messages.items()
        }
        self._messages.clear()
        return found


class _Sample(NamedTuple):
    """A rank's counters: iterations, and seconds of all kinds so far."""

    iteration: int
    now: float
    data: float
    under_way: float
    waited: float
    test: float


class Recorder:
    """Makes the records of a solver and hands them to its ``callbacks.on_record``, on rank 0.

    While there is nobody to get them, nothing is measured.  ``layers`` asks for the values of
    layers and parameters, too; ``flags`` has the command line's, for the record of a start.
    """

    def __init__(self, solver: Solver):
        # Weak: the solver has this recorder, and is to be freed with its last reference.
        self._solver: Solver = weakref.proxy(solver)
        self._sums = SpanSums()
        self._profiles = self._began = False
        self._last = _Sample(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        self._test_seconds = 0.0
        self._shown: tuple[int, Metrics] | None = None
        self._plan: Metrics = {}
        self.layers: LayerMetrics | None = None
        self.flags: Mapping[str, Any] = {}

    @property
    def _is_wanted(self) -> bool:
        return bool(self._solver.callbacks.on_record) and self._solver.cluster.rank == 0

    def restart(self) -> None:
        """Note that the run goes on from another iteration."""
        self._began = False

    def begin(self) -> None:
        """Follow the solver from now on; send a record of the run's properties."""
        solver = self._solver
        if self._profiles != self._is_wanted:
            self._profiles = not self._profiles
            solver.profile(self._sums, self._profiles)
        if not self._profiles:
            self._began = False
        if self._began or not self._profiles:
            return
        self._began = True
        self._plan = {}
        self._sums.take()
        self._sums.take_messages()
        self._last = self._sample()
        self._send(
            self._head("start")
            | {
                "net": solver.net.name,
                "ranks": solver.cluster.size,
                "hosts": len(set(solver.cluster.hosts)) if solver.cluster.size > 1 else 1,
                "batch": solver.effective_batch,
                "parameter_count": sum(p.blob.count for p in solver.net.parameters),
                "flags": dict(self.flags),
                "solver": _fields(solver.param),
                "definition": text.to_text(solver.net.definition),
            }
        )

    def show(self, means: np.ndarray | None) -> None:
        """Begin a record of this iteration, whose mean loss and outputs are ``means``."""
        if not self._is_wanted or means is None:
            return
        solver = self._solver
        self._shown = (
            solver.iteration,
            {
                "loss": float(means[0]),
                "outputs": by_output(solver.net, means[1:].tolist()),
                "learning_rate": solver.state.rate(solver.cluster),
            },
        )
        if solver.state.loss_scale is not None:
            self._shown[1]["loss_scale"] = solver.state.loss_scale.value
        with device.use(device.HOST):
            for callback in solver.callbacks.at_display:
                callback(solver)
        if self.layers:
            self.layers.before_update(solver)

    def send_shown(self) -> None:
        """Send the record that `show` began, now that the iteration's update has been made."""
        if self._shown is None:
            return
        (iteration, values), self._shown = self._shown, None
        plan = self._solver.engine.messages()
        if plan is not self._plan and plan:
            self._plan = plan
            self._send(self._head("plan", iteration) | {"messages": plan})
        record = self._head("train", iteration) | values | self._times()
        if self.layers:
            self._solver.finish_updates()
            with device.use(device.HOST):
                record |= self.layers.after_update(self._solver)
        self._send(record)

    def send_last(self, loss: float) -> None:
        """Send the loss after the last iteration."""
        if self._is_wanted:
            self._send(self._head("train") | {"loss": loss})

    def send_test(self, number: int) -> None:
        """Send what a test of the test net of this number has found."""
        if not self._is_wanted:
            return
        testing = self._solver.testing
        self._test_seconds += testing.seconds[number]
        self._send(
            self._head("test")
            | {
                "net": number,
                "loss": testing.losses[number],
                "outputs": {name: list(found) for name, found in testing.values[number].items()},
                "seconds": testing.seconds[number],
            }
        )

    def send_snapshot(self, path: str, seconds: float) -> None:
        """Send the name of a snapshot's weights, and the seconds that training waited for it."""
        if self._began and self._is_wanted:
            self._send(self._head("snapshot") | {"path": path, "seconds": seconds})

    def _head(self, kind: str, iteration: int | None = None) -> Metrics:
        """Return what all records have."""
        solver = self._solver
        iteration = solver.iteration if iteration is None else iteration
        record: Metrics = {"kind": kind, "iteration": iteration, "time": time.time()}
        records = max((layer.records for layer in solver.net.layers), default=0)
        if records:
            record["epoch"] = iteration * solver.effective_batch / records
        return record

    def _sample(self) -> _Sample:
        solver = self._solver
        return _Sample(
            solver.iteration,
            time.perf_counter(),
            sum(layer.seconds_waited for layer in solver.net.layers),
            solver.engine.seconds_under_way,
            solver.engine.seconds_waited,
            self._test_seconds,
        )

    def _times(self) -> Metrics:
        """Return this rank's speed, and the shares of its time, since the last call."""
        last, self._last = self._last, self._sample()
        iterations, passed, data, under_way, waited, test = np.subtract(self._last, last).tolist()
        self._solver.profiler.hand_over()
        seconds = self._sums.take()
        of: dict[str, float] = defaultdict(float)
        for (kind, _), spent in seconds.items():
            of[kind] += spent
        parts = {
            "forward": max(0.0, of[Kind.FORWARD] - data),
            "backward": of[Kind.BACKWARD],
            "update": sum(of[kind] for kind in _UPDATING),
            "data": data,
            "exchange_not_hidden": waited,
            "test": test,
            "exchange_hidden": max(0.0, under_way - waited),
        }
        passed = max(passed, 1e-9)
        found: Metrics = {"shares": {name: part / passed for name, part in parts.items()}}
        if iterations > 0:
            speed = iterations / max(passed - test, 1e-9)
            found["images_per_second"] = speed * self._solver.effective_batch
            if self.layers:
                found |= self.layers.times(seconds, iterations)
        messages = self._sums.take_messages()
        if self.layers and messages:
            found["messages"] = messages
        return found

    def _send(self, record: Metrics) -> None:
        record = {name: _rounded(value) for name, value in record.items()}
        for function in self._solver.callbacks.on_record:
            function(self._solver, record)


def _fields(param: Any) -> dict[str, Any]:
    """Return the fields of a SolverParameter that are numbers or texts, or lists of them."""
    found = {}
    for field, value in param.ListFields():
        if field.message_type is not None or field.name == "train_state":
            continue
        found[field.name] = list(value) if isinstance(value, list) or _repeats(value) else value
        if field.enum_type is not None:
            found[field.name] = field.enum_type.values_by_number[value].name
    return found


def _rounded(value: Any) -> Any:
    """Return a value whose numbers have the digits of a float32 and, for times, milliseconds."""
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{_DIGITS}g}") if abs(value) < _LARGE else round(value, 3)
    return value


def _repeats(value: Any) -> bool:
    return not isinstance(value, str | bytes) and hasattr(value, "__len__")
