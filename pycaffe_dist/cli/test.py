"""Score a trained net.

Prints every batch's outputs and their means.  Under mpirun the batches are spread over the ranks.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pycaffe_dist.cli.flags import FlagParser, add_caffe_flags, split_list
from pycaffe_dist.errors import UsageError
from pycaffe_dist.log import fmt, logger

if TYPE_CHECKING:
    import numpy as np

    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.net import Net


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags."""
    add_caffe_flags(parser, ("model", "weights", "iterations", "gpu", "level", "stage"))


def run(options: argparse.Namespace) -> int:
    """Score as the flags say; raises PcaffeError."""
    if not options.model:
        raise UsageError("need a model definition to score: --model=FILE")
    if not options.weights:
        raise UsageError("need model weights to score: --weights=FILE")
    if options.iterations < 1:
        raise UsageError(f"flag --iterations needs 1 or more, not {options.iterations}")
    from pycaffe_dist.cli.nets import open_net
    from pycaffe_dist.comm.cluster import detect
    from pycaffe_dist.data.partition import Shard
    from pycaffe_dist.gpu.choice import choose_device
    from pycaffe_dist.net.precompile import compile_kernels
    from pycaffe_dist.schema import caffe_pb2
    from pycaffe_dist.threads import set_threads

    with detect() as cluster:
        set_threads(cluster.threads)
        chosen = choose_device(
            options.gpu, local_rank=cluster.local_rank, local_size=cluster.local_size
        )
        shard = Shard(cluster.rank, cluster.size, "batch")
        net = open_net(options, caffe_pb2.TEST, shard, device=chosen)
        try:
            compile_kernels([net])
            for path in split_list(options.weights):
                net.load_weights(path)
            logger.info("Running for %d iterations.", options.iterations)
            scores = _score(net, options.iterations, cluster)
        finally:
            net.close()
    _log_means(net, scores.mean(axis=0).tolist())
    return 0


def _score(net: Net, iterations: int, cluster: Cluster) -> np.ndarray:
    """Return the loss and the output values of every batch, shape (iterations, 1 + values)."""
    import numpy as np

    names = _value_names(net)
    scores = np.zeros((iterations, 1 + len(names)))
    for batch in range(cluster.rank, iterations, cluster.size):
        loss = net.forward()
        values = [net.blobs[name].read_data().reshape(-1) for name in net.outputs]
        scores[batch] = np.concatenate([[loss], *values])
        if cluster.size == 1:
            _log_batch(batch, names, scores[batch])
    if cluster.size > 1:
        scores = cluster.sum(scores)
        for batch in range(iterations):
            _log_batch(batch, names, scores[batch])
    return scores


def _value_names(net: Net) -> list[str]:
    """Return the output blob's name of every output value."""
    return [name for name in net.outputs for _ in range(net.blobs[name].count)]


def _log_batch(batch: int, names: list[str], scores: np.ndarray) -> None:
    for name, score in zip(names, scores[1:].tolist()):
        logger.info("Batch %d, %s = %s", batch, name, fmt(score))


def _log_means(net: Net, means: list[float]) -> None:
    logger.info("Loss: %s", fmt(means[0]))
    for name, mean in zip(_value_names(net), means[1:]):
        weight = net.blob_losses.get(name, 0.0)
        loss = f" (* {fmt(weight)} = {fmt(weight * mean)} loss)" if weight else ""
        logger.info("%s = %s%s", name, fmt(mean), loss)
