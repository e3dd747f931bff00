"""Running means of a net's weights over the iterations, which often test better than the weights.

EMA is the exponential moving average, SWA stochastic weight averaging (Izmailov et al., 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.device import use
from pycaffe_dist.kernels.update import blend
from pycaffe_dist.log import logger
from pycaffe_dist.net import Net, Parameter

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter


class WeightAverage:
    """Means of the weights of ``net``, and of its layers' running statistics.

    ``count`` is the number of iterations in the means; there are none while it is 0.  All ranks
    have the same means of weights; those of statistics are each rank's own.
    """

    def __init__(self, param: SolverParameter, net: Net):
        self._param, self._net = param, net
        self.count = 0
        with use(net.device):
            self._means = [Blob(p.shape, p.blob.dtype) for p in net.parameters]

    def is_due(self, iteration: int) -> bool:
        """Tell whether the weights that ``iteration`` iterations have made count."""
        since = iteration - self._param.averaging_start
        return since >= 0 and since % self._param.averaging_period == 0

    def add(self) -> None:
        """Let the present weights count."""
        if not self.count:
            logger.info("Tests and snapshots have means of the weights: %s", self._param.averaging)
        share = self._next_share()
        with use(self._net.device):
            for parameter, mean in zip(self._net.parameters, self._means):
                blend(mean.data, parameter.blob.read_data(), share)
        self.count += 1

    def _next_share(self) -> float:
        if self._param.averaging == "SWA" or not self.count:
            return 1 / (1 + self.count)
        # As in TensorFlow, the first means are of fewer iterations than later ones.
        return 1 - min(self._param.averaging_decay, (1 + self.count) / (10 + self.count))

    @property
    def arrays(self) -> list[np.ndarray]:
        """The means in the order of the net's parameters, to be written to; empty without any."""
        return [mean.data for mean in self._means] if self.count else []

    @property
    def of_blobs(self) -> Mapping[tuple[int, int], Blob]:
        """The means by the numbers of layer and blob, also for layers that share parameters."""
        pairs = zip(self._net.parameters, self._means) if self.count else ()
        return {place: mean for parameter, mean in pairs for place in parameter.sharers}

    def lend(self, net: Net) -> None:
        """Let a test net, which shares the net's weights, share the means instead."""
        layers = {node.name: node.layer for node in net.nodes}
        for (number, index), mean in self.of_blobs.items():
            layer = layers.get(self._net.nodes[number].name)
            if layer is not None:
                layer.blobs[index].share_data(mean)

    def statistics(self) -> list[np.ndarray]:
        """Return the means of running statistics; empty without any."""
        return [mean.data for _, mean in self._of_statistics()] if self.count else []

    def next_statistics(self) -> list[np.ndarray]:
        """Return what `statistics` will be after the next `add`."""
        share, found = self._next_share(), []
        with use(self._net.device):
            for parameter, mean in self._of_statistics():
                found.append(mean.data.copy())
                blend(found[-1], parameter.blob.read_data(), share)
        return found

    def _of_statistics(self) -> list[tuple[Parameter, Blob]]:
        """Return the running statistics with their means."""
        blobs = {id(b) for layer in self._net.layers for b in layer.statistics_blobs()}
        pairs = zip(self._net.parameters, self._means)
        return [(parameter, mean) for parameter, mean in pairs if id(parameter.blob) in blobs]

    def mean_statistics(self, cluster: Cluster) -> None:
        """Give the means of statistics their mean over ranks, on all ranks."""
        if cluster.size > 1:
            for array in self.statistics():
                array[...] = cluster.mean(array)

    def restore(self, count: int, means: Sequence[np.ndarray]) -> None:
        """Go on from ``means`` of ``count`` iterations, in the order of the net's parameters."""
        self.count = count
        for mine, saved in zip(self.arrays, means):
            mine[...] = saved.reshape(mine.shape)

    def share(self, cluster: Cluster, root: int = 0) -> None:
        """Give all ranks the means of rank ``root``; all ranks must call it."""
        self.count = int(cluster.broadcast(np.array([self.count]), root)[0])
        for array in self.arrays:
            cluster.broadcast(array, root)
