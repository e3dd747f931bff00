"""Where an iteration's time goes, from the timeline of a run, and what would save most of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from pycaffe_dist.errors import DataError
from pycaffe_dist.log import fmt, fmt_bytes
from pycaffe_dist.table import RULE, aligned

# The words for spans of time, by kind.
PARTS = {
    "forward": "forward",
    "backward": "backward",
    "update": "updates",
    "rebuild": "rebuilding gradients",
    "wait": "waiting for gradients",
    "data": "waiting for data",
    "test": "tests",
    "snapshot": "snapshots",
}
_LAYERS = ("forward", "backward")
_COMPUTING = (*_LAYERS, "update")
_SHOWN = 3


@dataclass(frozen=True)
class Saving:
    """What an iteration would save at most, in milliseconds, and how."""

    what: str
    milliseconds: float


@dataclass(frozen=True)
class Messages:
    """The messages of an exchange in an iteration, the mean over ranks: ``bytes`` that one sends.

    ``milliseconds`` is the sum of their times, of which several may pass at once.
    """

    exchange: str
    count: float
    bytes: float
    milliseconds: float


@dataclass(frozen=True)
class IterationTimes:
    """The mean times of an iteration's parts over ranks, in milliseconds.

    ``hidden`` is the share of the messages' time in which the rank did not wait for them.
    """

    ranks: int
    iterations: int
    parts: dict[str, float]
    whole: float
    hidden: float | None
    savings: tuple[Saving, ...]
    messages: tuple[Messages, ...] = ()

    def table(self) -> str:
        """Return a line for each part, and what would save most."""
        rows = [
            (name, fmt(round(spent, 4)), f"{100 * spent / self.whole:.1f} %")
            for name, spent in self.parts.items()
        ]
        whole = ("iteration", fmt(round(self.whole, 4)), "")
        head = ("part", f"ms, mean of {self.iterations} x {self.ranks} rank(s)", "share")
        lines = [aligned([head, RULE, *rows, RULE, whole])]
        if self.hidden is not None:
            lines.append(f"{100 * self.hidden:.0f} % of the messages' time was hidden")
        if self.messages:
            lines += ["", self._message_table(), ""]
        lines.append("What would save most:")
        lines += [f"  at most {fmt(round(s.milliseconds, 3))} ms: {s.what}" for s in self.savings]
        return "\n".join(lines)

    def _message_table(self) -> str:
        rows = [("exchange", "messages", "sent by a rank", "ms under way", "a second")]
        for each in self.messages:
            rate = 1e3 * each.bytes / each.milliseconds if each.milliseconds else 0.0
            figures = f"{each.count:.4g}", fmt_bytes(each.bytes), fmt(round(each.milliseconds, 4))
            rows.append((each.exchange, *figures, fmt_bytes(rate)))
        return aligned([rows[0], RULE, *rows[1:]])


def read_times(path: str, skip: int = 1) -> IterationTimes:
    """Return the times of a timeline's iterations, without the first ``skip``.

    Raises DataError for a file that is unreadable or has no iterations.
    """
    spans = _read(path)
    starts: dict[int, list[dict]] = defaultdict(list)
    for span in spans:
        if span["cat"] == "iteration":
            starts[span["pid"]].append(span)
    kept = {rank: of_rank[skip:] or of_rank for rank, of_rank in starts.items()}
    if not kept:
        raise DataError(f"'{path}' has no marks of iterations: write it with pcaffe train again")
    begin = {rank: marks[0]["ts"] for rank, marks in kept.items()}
    end = {rank: max(m["ts"] + m["dur"] for m in marks) for rank, marks in kept.items()}
    by_rank: dict[int, dict[tuple[str, str], float]] = {rank: defaultdict(float) for rank in kept}
    sent: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(3))
    for span in spans:
        rank = span["pid"]
        if rank in kept and begin[rank] <= span["ts"] <= end[rank]:
            milliseconds = span["dur"] / 1e3
            by_rank[rank][span["cat"], span["name"]] += milliseconds / len(kept[rank])
            if about := span.get("args"):
                sums = np.array([1, about["bytes"], milliseconds])
                sent[about["exchange"]] += sums / len(kept[rank]) / len(kept)
    whole = mean((end[rank] - begin[rank]) / 1e3 / len(kept[rank]) for rank in kept)
    count = round(mean(map(len, kept.values())))
    messages = tuple(Messages(name, *sums.tolist()) for name, sums in sent.items())
    return replace(_times(by_rank, whole, count), messages=messages)


def _read(path: str) -> list[dict[str, Any]]:
    try:
        events = json.loads(Path(path).read_text())["traceEvents"]
        return [event for event in events if event["ph"] == "X"]
    except OSError as error:
        raise DataError(f"cannot read the timeline '{path}': {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(f"'{path}' is not a timeline of pcaffe train --timeline") from error


def _times(
    by_rank: Mapping[int, Mapping[tuple[str, str], float]], whole: float, iterations: int
) -> IterationTimes:
    of = {rank: _sums(spent) for rank, spent in by_rank.items()}
    for sums in of.values():
        sums["forward"] -= sums["data"]  # in the forward of the data layer
    parts = {
        words: mean(sums[name] for sums in of.values())
        for name, words in PARTS.items()
        if any(sums[name] for sums in of.values())
    }
    parts["other work"] = max(0.0, whole - sum(parts.values()))
    under_way = mean(sums["exchange"] for sums in of.values())
    waited = mean(sums["wait"] for sums in of.values())
    savings = sorted(_savings(by_rank, of, parts), key=lambda saving: -saving.milliseconds)
    return IterationTimes(
        len(by_rank),
        iterations,
        parts,
        whole,
        max(0.0, 1 - waited / under_way) if under_way else None,
        tuple(savings[:_SHOWN]),
    )


def _sums(spent: Mapping[tuple[str, str], float]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for (kind, _), milliseconds in spent.items():
        sums[kind] += milliseconds
    return sums


def _savings(
    by_rank: Mapping[int, Mapping[tuple[str, str], float]],
    of: Mapping[int, Mapping[str, float]],
    parts: Mapping[str, float],
) -> Iterator[Saving]:
    """Yield all that could be saved, with what to try."""
    hints = {
        "waiting for gradients": "another --exchange, --overlap=forward or --wire=float16",
        "waiting for data": "--readers, --decoders, --cache",
        "tests": "a larger test_interval or a smaller test_iter",
        "snapshots": "a larger snapshot interval",
        "other work": "larger batches; --timeline shows the gaps",
    }
    for name, hint in hints.items():
        if parts.get(name):
            yield Saving(f"{name} ({hint})", parts[name])
    layers: dict[str, list[float]] = defaultdict(list)
    for spent in by_rank.values():
        for (kind, name), milliseconds in spent.items():
            if kind in _LAYERS and ("data", f"data {_layer(name)}") not in spent:
                layers[_layer(name)].append(milliseconds)
    for name, times in layers.items():
        yield Saving(f"layer '{name}', forward and backward", sum(times) / len(by_rank))
    computing = {rank: sum(sums[kind] for kind in _COMPUTING) for rank, sums in of.items()}
    if len(computing) > 1:
        slowest = max(computing, key=lambda rank: computing[rank])
        yield Saving(
            f"rank {slowest} computes longer than the mean (its core may have other work)",
            computing[slowest] - mean(computing.values()),
        )


def _layer(name: str) -> str:
    """Return the layer of a span's name, such as ``forward conv1``."""
    return name.partition(" ")[2]
