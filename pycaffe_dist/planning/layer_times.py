"""The times of a solver's layers and updates, from the first iterations of a run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.net import Net
from pycaffe_dist.profiling import Kind, Span

# The first iteration compiles kernels, and touches memory for the first time.
_WARM_UP = 1
_MEASURED = 2
_COMPUTING = (Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE)


@dataclass(frozen=True)
class Times:
    """The seconds that one rank computes per layer, forward and backward, and in all updates."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    update: float


class LayerTimes:
    """Collects the layers' and updates' times; call it with spans."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._iterations = 0

    def __call__(self, spans: Sequence[Span]) -> None:
        """Take spans."""
        for kind, name, started, ended, _ in spans:
            if kind in _COMPUTING:
                self._seconds[kind, name].append(ended - started)

    def end_iteration(self) -> bool:
        """Note the end of an iteration; tell whether there were enough."""
        self._iterations += 1
        if self._iterations == _WARM_UP:
            self._seconds.clear()
        return self._iterations >= _WARM_UP + _MEASURED

    def times(self, net: Net, cluster: Cluster) -> Times:
        """Return the median times of the slowest rank, for which the others wait.

        All ranks must call it.
        """
        found = [
            self._median(kind, name)
            for kind in (Kind.FORWARD, Kind.BACKWARD)
            for name in net.layer_names
        ]
        updates = [self._median(kind, name) for kind, name in self._seconds if kind == Kind.UPDATE]
        mine = json.dumps([*found, sum(updates)]).encode()
        values = max(map(json.loads, cluster.gather_bytes(mine)), key=sum)
        count = len(net.nodes)
        return Times(tuple(values[:count]), tuple(values[count:-1]), values[-1])

    def _median(self, kind: str, name: str) -> float:
        return median(self._seconds.get((kind, name), [0.0]))
