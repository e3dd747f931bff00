"""How long a solver's layers and updates take, from the first iterations of a run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from statistics import median

from pycaffe_dist.net import Net
from pycaffe_dist.runtime.choosing import Times
from pycaffe_dist.runtime.cluster import Cluster
from pycaffe_dist.runtime.recording import Kind

# The first iteration compiles kernels, and touches memory for the first time.
_WARM_UP = 1
_MEASURED = 2
_COMPUTING = (Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE)


class LayerTimes:
    """Collects spans of time; call it as a `Record`.

    ``under_way`` returns for how many seconds messages have been under way: those slow the layers
    down, which the times that come of it leave out.
    """

    def __init__(self, under_way: Callable[[], float]):
        self._under_way = under_way
        self._before = 0.0
        self._spans: dict[tuple[Kind, str], list[tuple[float, float]]] = defaultdict(list)
        self._iterations = 0

    def __call__(self, kind: Kind, name: str, started: float, ended: float) -> None:
        if kind not in _COMPUTING:
            return
        before, self._before = self._before, self._under_way()
        with_messages = min(self._before - before, ended - started)
        self._spans[kind, name].append((ended - started, with_messages))

    def end_iteration(self) -> bool:
        """Take note of the end of an iteration; tell whether there were enough."""
        self._iterations += 1
        if self._iterations == _WARM_UP:
            self._spans.clear()
        return self._iterations >= _WARM_UP + _MEASURED

    def times(self, net: Net, cluster: Cluster) -> Times:
        """Return the median times of the slowest rank, for which the others wait.

        All ranks must call it.
        """
        lost = 1 - cluster.contention().computing
        found = [
            self._alone(kind, name, lost)
            for kind in (Kind.FORWARD, Kind.BACKWARD)
            for name in net.layer_names
        ]
        updates = [self._alone(Kind.UPDATE, parameter.key, lost) for parameter in net.parameters]
        mine = json.dumps([*found, sum(updates)]).encode()
        values = max(map(json.loads, cluster.gather_bytes(mine)), key=sum)
        count = len(net.nodes)
        return Times(tuple(values[:count]), tuple(values[count:-1]), values[-1])

    def _alone(self, kind: Kind, name: str, lost: float) -> float:
        """Return the median time without the part that is lost while messages are under way."""
        spans = self._spans.get((kind, name), [(0.0, 0.0)])
        return median(seconds - lost * with_messages for seconds, with_messages in spans)
