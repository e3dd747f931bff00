"""Test passes: the mean of a test net's outputs over its batches, spread over the ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.log import fmt, logger
from pycaffe_dist.net import Net
from pycaffe_dist.solvers import resuming
from pycaffe_dist.solvers.detections import Detections, list_outputs, write_files
from pycaffe_dist.solvers.state import BeforeTest, TrainState

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter


def mean_outputs(net: Net) -> list[str]:
    """Return the outputs whose means are of interest: all but lists of detections."""
    return [name for name in net.outputs if name not in list_outputs(net)]


def read_outputs(net: Net) -> np.ndarray:
    """Return the values of all `mean_outputs`."""
    values = [net.blobs[name].read_data().reshape(-1) for name in mean_outputs(net)]
    return np.concatenate([np.empty(0), *values])


def by_output(net: Net, values: Sequence[float]) -> dict[str, Sequence[float]]:
    """Return values of all `mean_outputs` by the outputs' names."""
    found, begin = {}, 0
    for name in mean_outputs(net):
        end = begin + net.blobs[name].count
        found[name], begin = values[begin:end], end
    return found


def log_outputs(net: Net, phase_word: str, values: Mapping[str, Sequence[float]]) -> None:
    """Log one line per output value, in Caffe's words; ``values`` are those of some outputs."""
    number = 0
    for name in net.outputs:
        weight = net.blob_losses.get(name, 0.0)
        for value in values.get(name, ()):
            loss = f" (* {fmt(weight)} = {fmt(weight * value)} loss)" if weight else ""
            logger.info(
                "    %s net output #%d: %s = %s%s", phase_word, number, name, fmt(value), loss
            )
            number += 1


class Testing:
    """A run's test nets, and when and how they are tested.

    ``state`` counts their batches; ``values`` and ``losses`` are those of each net's last test, and
    ``seconds`` its time.
    """

    def __init__(
        self,
        param: SolverParameter,
        nets: Sequence[Net],
        state: TrainState,
        cluster: Cluster,
    ):
        self._param, self._nets, self._state, self._cluster = param, nets, state, cluster
        self.values: list[Mapping[str, Sequence[float]]] = [{}] * len(nets)
        self.losses = [0.0] * len(nets)
        self.seconds = [0.0] * len(nets)
        # Called after each of this rank's batches, with the net and its number.
        self.after_batch: list[Callable[[Net, int], None]] = []

    def is_due(self) -> bool:
        """Tell whether test_interval asks for a test before this iteration."""
        param, iteration = self._param, self._state.iteration
        due = bool(param.test_interval) and iteration % param.test_interval == 0
        return due and (iteration > 0 or param.test_initialization)

    def run(self, train_net: Net, is_interrupted: Callable[[], bool]) -> bool:
        """Test every net with the train net's weights, or their means, and log the mean outputs.

        On one rank a request to stop is obeyed between batches; several ranks finish the test of a
        net first.  Returns whether all nets were tested.
        """
        state = self._state
        # An interrupted test starts again, with the same batches, when the run is resumed.
        state.before_test = BeforeTest(
            state.tested.copy(), [resuming.layer_states(net) for net in self._nets]
        )
        for number, net in enumerate(self._nets):
            net.share_weights_with(train_net)
            if state.average:
                state.average.lend(net)
            began = time.perf_counter()
            if not self._test(net, number, is_interrupted):
                return False
            self.seconds[number] = time.perf_counter() - began
        state.before_test = None
        return True

    def _test(self, net: Net, number: int, is_interrupted: Callable[[], bool]) -> bool:
        """Test a net for its test_iter batches; tell whether that was not interrupted.

        The batches are dealt to the ranks in turn, so that P ranks together see the batches that
        one rank alone would see, and every batch counts once.  The value of an output of
        DetectionEvaluate is the mean average precision of all detections.
        """
        state, cluster = self._state, self._cluster
        logger.info("Iteration %d, Testing net (#%d)", state.iteration, number)
        batches = state.take_batches(number, self._param.test_iter[number])
        if not batches:
            logger.warning("test_iter of test net #%d is 0: there is nothing to average", number)
            return True
        sums = np.zeros(1 + len(read_outputs(net)))
        detections = Detections(net)
        for batch in batches:
            if batch % cluster.size != cluster.rank:
                continue
            if cluster.size == 1 and is_interrupted():
                logger.info("Test interrupted.")
                return False
            sums[0] += net.forward()
            sums[1:] += read_outputs(net)
            detections.add(batch)
            for function in self.after_batch:
                function(net, number)
        write_files(net, cluster)
        means = (cluster.sum(sums) / len(batches)).tolist()
        if self._param.test_compute_loss:
            logger.info("Test loss: %s", fmt(means[0]))
        values = by_output(net, means[1:])
        for name, found in detections.gather(cluster).items():
            found.log_classes(self._param.ap_version, self._param.show_per_class_result)
            values[name] = [found.mean_precision(self._param.ap_version)]
        log_outputs(net, "Test", values)
        self.values[number], self.losses[number] = values, means[0]
        return True
