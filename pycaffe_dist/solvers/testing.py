"""Test passes: the mean of a test net's outputs over its batches, spread over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.log import fmt, logger
from pycaffe_dist.net import Net
from pycaffe_dist.solvers.state import TrainState


def log_outputs(net: Net, phase_word: str, values: Sequence[float]) -> None:
    """Log one line per output value, in Caffe's words; ``values`` run over all outputs."""
    number = 0
    for name in net.outputs:
        weight = net.blob_losses.get(name, 0.0)
        for _ in range(net.blobs[name].count):
            value = values[number]
            loss = f" (* {fmt(weight)} = {fmt(weight * value)} loss)" if weight else ""
            logger.info(
                "    %s net output #%d: %s = %s%s", phase_word, number, name, fmt(value), loss
            )
            number += 1


def test(
    net: Net,
    number: int,
    param: Any,
    state: TrainState,
    cluster: Cluster,
    is_interrupted: Callable[[], bool],
) -> list[float]:
    """Run test ``net`` for its test_iter batches; return and log the mean outputs.

    The batches are dealt to the ranks in turn, so that P ranks together see those that one rank
    alone would see, and every batch counts once.  On one rank a request to stop is obeyed between
    batches (and nothing is returned); several ranks finish the test first.
    """
    logger.info("Iteration %d, Testing net (#%d)", state.iteration, number)
    batches = state.take_batches(number, param.test_iter[number])
    sums = np.zeros(1 + sum(net.blobs[name].count for name in net.outputs))
    for batch in batches:
        if batch % cluster.size != cluster.rank:
            continue
        if cluster.size == 1 and is_interrupted():
            logger.info("Test interrupted.")
            return []
        sums[0] += net.forward()
        sums[1:] += np.concatenate(
            [net.blobs[name].read_data().reshape(-1) for name in net.outputs]
        )
    means = (cluster.sum(sums) / len(batches)).tolist()
    if param.test_compute_loss:
        logger.info("Test loss: %s", fmt(means[0]))
    log_outputs(net, "Test", means[1:])
    return means[1:]
