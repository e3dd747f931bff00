"""Test passes: the mean of a test net's outputs over its batches, spread over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.log import fmt, logger
from pycaffe_dist.net import Net
from pycaffe_dist.solvers import resuming
from pycaffe_dist.solvers.state import BeforeTest, TrainState

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter


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


class Testing:
    """A run's test nets, and when and how they are tested.

    ``state`` counts their batches.
    """

    def __init__(
        self,
        param: SolverParameter,
        nets: Sequence[Net],
        state: TrainState,
        cluster: Cluster,
    ):
        self._param, self._nets, self._state, self._cluster = param, nets, state, cluster

    def is_due(self) -> bool:
        """Tell whether test_interval asks for a test before this iteration."""
        param, iteration = self._param, self._state.iteration
        due = bool(param.test_interval) and iteration % param.test_interval == 0
        return due and (iteration > 0 or param.test_initialization)

    def run(self, train_net: Net, is_interrupted: Callable[[], bool]) -> None:
        """Test every net with the train net's weights, and log the mean outputs.

        On one rank a request to stop is obeyed between batches; several ranks finish the test of a
        net first.
        """
        state = self._state
        # An interrupted test starts again, with the same batches, when the run is resumed.
        state.before_test = BeforeTest(
            state.tested.copy(), [resuming.layer_states(net) for net in self._nets]
        )
        for number, net in enumerate(self._nets):
            net.share_weights_with(train_net)
            if not self._test(net, number, is_interrupted):
                return
        state.before_test = None

    def _test(self, net: Net, number: int, is_interrupted: Callable[[], bool]) -> bool:
        """Test a net for its test_iter batches; tell whether that was not interrupted.

        The batches are dealt to the ranks in turn, so that P ranks together see the batches that
        one rank alone would see, and every batch counts once.
        """
        state, cluster = self._state, self._cluster
        logger.info("Iteration %d, Testing net (#%d)", state.iteration, number)
        batches = state.take_batches(number, self._param.test_iter[number])
        sums = np.zeros(1 + sum(net.blobs[name].count for name in net.outputs))
        for batch in batches:
            if batch % cluster.size != cluster.rank:
                continue
            if cluster.size == 1 and is_interrupted():
                logger.info("Test interrupted.")
                return False
            sums[0] += net.forward()
            sums[1:] += np.concatenate(
                [net.blobs[name].read_data().reshape(-1) for name in net.outputs]
            )
        means = (cluster.sum(sums) / len(batches)).tolist()
        if self._param.test_compute_loss:
            logger.info("Test loss: %s", fmt(means[0]))
        log_outputs(net, "Test", means[1:])
        return True
