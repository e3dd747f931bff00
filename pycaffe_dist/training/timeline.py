"""A file with the times of every rank's work, in Chrome's trace format, for Perfetto and others."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pycaffe_dist import atomic
from pycaffe_dist.calibration.clocks import clock_ahead
from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.errors import UsageError
from pycaffe_dist.log import logger
from pycaffe_dist.profiling import Kind, Span

# Some 20 MB of file for each rank.
MOST_SPANS = 200_000
_SHORTEST_WAIT = 20e-6  # waiting for messages that have arrived is not shown
_COMPUTING = 0  # the first row of a rank; overlapping exchanges take one row each
_MARKS = 1
_FIRST_EXCHANGE = 2
_WAITS = (Kind.WAIT, Kind.DATA)
_MARKED = (Kind.ITERATION, Kind.TEST, Kind.SNAPSHOT)


class _Event(NamedTuple):
    """A span, on the clock of rank 0."""

    kind: str
    name: str
    started: float
    ended: float
    nbytes: float


class Timeline:
    """Keeps the first ``most`` spans that it is called with, and those of earlier attempts in
    ``spans``.

    Making one and writing it are collective: the ranks' clocks are compared at both times.  Raises
    UsageError on rank 0 when ``path`` cannot be written to.
    """

    def __init__(self, path: str, cluster: Cluster, spans: list[Span], most: int = MOST_SPANS):
        self._path, self._cluster, self._most = path, cluster, most
        self._spans = spans
        if cluster.rank == 0:
            _check_place(Path(path))
        self._began = clock_ahead(cluster)

    def __call__(self, spans: Sequence[Span]) -> None:
        """Take spans."""
        room = self._most - len(self._spans)
        if room:
            shown = [s for s in spans if s[0] not in _WAITS or s[3] - s[2] >= _SHORTEST_WAIT]
            self._spans.extend(shown[:room])

    def write(self) -> None:
        """Write the file of all ranks, on rank 0; raises SnapshotError there when that fails."""
        if len(self._spans) >= self._most:
            logger.warning("The timeline ends after %d spans", self._most)
        mine = self._on_clock_of_rank_0()
        packed = zlib.compress(json.dumps(mine).encode(), level=1)
        by_rank = self._cluster.gather_bytes(packed)
        if self._cluster.rank:
            return
        of_all = [[_Event(*span) for span in json.loads(zlib.decompress(data))] for data in by_rank]
        start = min((span.started for spans in of_all for span in spans), default=0.0)
        events = [
            event
            for rank, spans in enumerate(of_all)
            for event in _events(rank, self._cluster.hosts[rank], spans, start)
        ]
        atomic.write(self._path, [json.dumps({"traceEvents": events}).encode()])
        logger.info("Wrote the timeline %s", self._path)

    def _on_clock_of_rank_0(self) -> list[_Event]:
        """Return this rank's spans; between two comparisons, clocks drift evenly."""
        (first, ahead), (last, ahead_now) = self._began, clock_ahead(self._cluster)
        drift = (ahead_now - ahead) / max(last - first, 1e-9)

        def moved(moment: float) -> float:
            return moment - ahead - drift * (moment - first)

        return [
            span._replace(started=moved(span.started), ended=moved(span.ended))
            for span in map(_Event._make, self._spans)
        ]


def _check_place(path: Path) -> None:
    """Raise UsageError, before the run and not after it, if the file cannot be written."""
    if path.is_dir():
        raise UsageError(f"cannot write the timeline {path}: it is a folder")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write the timeline {path}: there is no such folder")


def _events(rank: int, host: str, spans: list[_Event], start: float) -> Iterator[dict[str, Any]]:
    """Yield a rank's events: a process with a row for computing, and some for exchanges."""
    yield _name("process_name", rank, 0, f"rank {rank} on {host}")
    yield _name("thread_name", rank, _COMPUTING, "computing and waiting")
    yield _name("thread_name", rank, _MARKS, "iterations, tests, snapshots")
    lanes: list[_Lane] = []
    for span in sorted(spans, key=lambda span: span.started):
        event = {
            "ph": "X",
            "cat": span.kind,
            "name": f"{span.kind} {span.name}",
            "pid": rank,
            "tid": _MARKS if span.kind in _MARKED else _COMPUTING,
            "ts": round(1e6 * (span.started - start), 3),
            "dur": round(1e6 * (span.ended - span.started), 3),
        }
        if span.kind == Kind.EXCHANGE:
            exchange, _, parameters = span.name.removeprefix("exchange ").partition(" of ")
            of_kind = [lane for lane in lanes if lane.exchange == exchange]
            lane = next((lane for lane in of_kind if lane.until <= span.started), None)
            if lane is None:
                lane = _Lane(exchange, _FIRST_EXCHANGE + len(lanes))
                lanes.append(lane)
                number = f", lane {len(of_kind) + 1}" if of_kind else ""
                yield _name("thread_name", rank, lane.row, exchange + number)
            lane.until = span.ended
            event["name"], event["tid"] = parameters, lane.row
            event["args"] = {"exchange": exchange, "bytes": round(span.nbytes)}
        yield event


@dataclass
class _Lane:
    """A row of messages of one exchange, one after the other."""

    exchange: str
    row: int
    until: float = 0.0


def _name(what: str, rank: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": row, "args": {"name": name}}
