"""How long a solver's layers and updates take, from the first iterations of a run."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from pycaffe_dist.net import Net
from pycaffe_dist.runtime.choosing import Times
from pycaffe_dist.runtime.cluster import Cluster
from pycaffe_dist.runtime.recording import Kind

# The first iteration compiles kernels, and touches memory for the first time.
_WARM_UP = 1
_MEASURED = 2


class LayerTimes:
    """Collects spans of time; call it as a `Record`."""

    def __init__(self) -> None:
        self._spans: dict[tuple[Kind, str], list[float]] = defaultdict(list)
        self._iterations = 0

    def __call__(self, kind: Kind, name: str, started: float, ended: float) -> None:
        self._spans[kind, name].append(ended - started)

    def end_iteration(self) -> bool:
        """Take note of the end of an iteration; tell whether there were enough."""
        self._iterations += 1
        if self._iterations == _WARM_UP:
            self._spans.clear()
        return self._iterations >= _WARM_UP + _MEASURED

    def times(self, net: Net, cluster: Cluster) -> Times:
        """Return the mean over ranks of the least times; all ranks must call it."""
        found = [
            self._least(kind, name)
            for kind in (Kind.FORWARD, Kind.BACKWARD)
            for name in net.layer_names
        ]
        update = sum(self._least(Kind.UPDATE, parameter.key) for parameter in net.parameters)
        values = cluster.mean(np.array([*found, update])).tolist()
        count = len(net.nodes)
        return Times(tuple(values[:count]), tuple(values[count:-1]), values[-1])

    def _least(self, kind: Kind, name: str) -> float:
        return min(self._spans.get((kind, name), (0.0,)))
