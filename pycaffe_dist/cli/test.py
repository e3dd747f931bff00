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
    from pycaffe_dist.solvers.detections import Detections


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
    from pycaffe_dist.solvers.average_precision import VERSIONS
    from pycaffe_dist.solvers.detections import Detections, write_files
    from pycaffe_dist.threads import set_threads

    with detect() as cluster:
        set_threads(cluster.threads)
        chosen = choose_device(
            options.gpu, local_rank=cluster.local_rank, local_size=cluster.local_size
        )
        shard = Shard(cluster.rank, cluster.size, "batch")
        net = open_net(options, caffe_pb2.TEST, shard, device=chosen)
        try:
            net.open_files()
            compile_kernels([net])
            for path in split_list(options.weights):
                net.load_weights(path)
            logger.info("Running for %d iterations.", options.iterations)
            detections = Detections(net)
            scores = _score(net, options.iterations, cluster, detections)
            found = detections.gather(cluster)
            write_files(net, cluster)
        finally:
            net.close()
    _log_means(net, scores.mean(axis=0).tolist())
    for name, detected in found.items():
        for version in VERSIONS:
            precision = fmt(detected.mean_precision(version))
            logger.info("%s = %s (mean average precision, %s)", name, precision, version)
    return 0


def _score(net: Net, iterations: int, cluster: Cluster, detections: Detections) -> np.ndarray:
    """Return the loss and the output values of every batch, shape (iterations, 1 + values)."""
    import numpy as np

    from pycaffe_dist.solvers.testing import read_outputs

    scores = np.zeros((iterations, 1 + len(read_outputs(net))))
    for batch in range(cluster.rank, iterations, cluster.size):
        loss = net.forward()
        scores[batch] = np.concatenate([[loss], read_outputs(net)])
        detections.add(batch)
        if cluster.size == 1:
            _log_batch(net, batch, scores[batch])
    if cluster.size > 1:
        scores = cluster.sum(scores)
        for batch in range(iterations):
            _log_batch(net, batch, scores[batch])
    return scores


def _log_batch(net: Net, batch: int, scores: np.ndarray) -> None:
    from pycaffe_dist.solvers.testing import by_output

    for name, values in by_output(net, scores[1:].tolist()).items():
        for value in values:
            logger.info("Batch %d, %s = %s", batch, name, fmt(value))


def _log_means(net: Net, means: list[float]) -> None:
    from pycaffe_dist.solvers.testing import by_output

    logger.info("Loss: %s", fmt(means[0]))
    for name, values in by_output(net, means[1:]).items():
        weight = net.blob_losses.get(name, 0.0)
        for mean in values:
            loss = f" (* {fmt(weight)} = {fmt(weight * mean)} loss)" if weight else ""
            logger.info("%s = %s%s", name, fmt(mean), loss)
