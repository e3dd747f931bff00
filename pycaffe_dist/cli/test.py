"""Score a trained net.

Prints the outputs' means over all batches; the log has those of every batch.  Under mpirun the
batches are spread over the ranks.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pycaffe_dist.cli.flags import (
    FlagParser,
    add_caffe_flags,
    add_json_flag,
    add_precision_flag,
    split_list,
)
from pycaffe_dist.errors import UsageError
from pycaffe_dist.log import fmt, logger

if TYPE_CHECKING:
    import numpy as np

    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.net import Net
    from pycaffe_dist.reports.scores import Output, Scores
    from pycaffe_dist.solvers.detections import Detections


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags."""
    add_caffe_flags(parser, ("model", "weights", "iterations", "gpu", "level", "stage"))
    add_precision_flag(parser)
    add_json_flag(parser)


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
    from pycaffe_dist.reports.scores import Scores
    from pycaffe_dist.results import show
    from pycaffe_dist.schema import caffe_pb2
    from pycaffe_dist.snapshot.caffemodel import require_weights
    from pycaffe_dist.solvers.average_precision import VERSIONS
    from pycaffe_dist.solvers.detections import Detections, write_files
    from pycaffe_dist.threads import set_threads

    weights = split_list(options.weights)
    for path in weights:
        require_weights(path)
    with detect() as cluster:
        set_threads(cluster.threads)
        chosen = choose_device(
            options.gpu, local_rank=cluster.local_rank, local_size=cluster.local_size
        )
        shard = Shard(cluster.rank, cluster.size, "batch")
        net = open_net(
            options,
            caffe_pb2.TEST,
            shard,
            device=chosen,
            keep_blobs=False,
            precision=options.precision,
        )
        try:
            net.open_files()
            compile_kernels([net])
            for path in weights:
                net.load_weights(path)
            logger.info("Running for %d iterations.", options.iterations)
            detections = Detections(net)
            scores = _score(net, options.iterations, cluster, detections)
            found = detections.gather(cluster)
            write_files(net, cluster)
        finally:
            net.close()
    loss, *means = scores.mean(axis=0).tolist()
    precisions = {
        name: {version: detected.mean_precision(version) for version in VERSIONS}
        for name, detected in found.items()
    }
    result = Scores(options.iterations, loss, _outputs(net, means), precisions)
    _log(result)
    show(result, options.json)
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


def _outputs(net: Net, means: list[float]) -> tuple[Output, ...]:
    from pycaffe_dist.reports.scores import Output
    from pycaffe_dist.solvers.testing import by_output

    return tuple(
        Output(name, tuple(values), net.blob_losses.get(name, 0.0))
        for name, values in by_output(net, means).items()
    )


def _log(scores: Scores) -> None:
    """Log the scores in Caffe's words."""
    logger.info("Loss: %s", fmt(scores.loss))
    for output in scores.outputs:
        weight = output.loss_weight
        for mean in output.means:
            loss = f" (* {fmt(weight)} = {fmt(weight * mean)} loss)" if weight else ""
            logger.info("%s = %s%s", output.name, fmt(mean), loss)
    for name, found in scores.precisions.items():
        for version, value in found.items():
            logger.info("%s = %s (mean average precision, %s)", name, fmt(value), version)
