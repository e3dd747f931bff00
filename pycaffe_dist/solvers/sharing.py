"""What all ranks get from rank 0 when a run starts."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.log import logger
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.solvers.engine import Engine
from pycaffe_dist.solvers.method import Method

if TYPE_CHECKING:
    from pycaffe_dist.net.parameter import Parameter


def agree_on_seed(param: caffe_pb2.SolverParameter, cluster: Cluster) -> int:
    """Return the run's random seed, drawn if none is given.

    Ranks share one seed in any case: they must shuffle alike.  Random numbers that must differ
    between ranks depend on the rank, too.
    """
    if param.random_seed >= 0:
        return param.random_seed
    seed = int(cluster.broadcast(np.array([secrets.randbits(31)], np.int64))[0])
    logger.info("Drew random_seed: %d", seed)
    return seed


def share_weights(net: Net, cluster: Cluster, root: int = 0) -> None:
    """Give all ranks the weights of rank ``root``; all ranks must call it."""
    if cluster.size > 1:
        for layer in net.layers:
            for blob in layer.blobs:
                cluster.broadcast(blob.data, root)


def share_history(
    method: Method,
    parameters: Sequence[Parameter],
    engine: Engine,
    cluster: Cluster,
    root: int = 0,
) -> None:
    """Give all ranks the history, on rank ``root``, of the parameters that every rank updates."""
    for index, parameter in enumerate(parameters):
        if not engine.updates(parameter):
            for number in range(method.slots):
                cluster.broadcast(method.slot(index, number), root)
