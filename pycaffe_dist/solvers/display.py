"""The log lines of every ``display`` iterations: speed, loss and outputs, means over ranks."""

from __future__ import annotations

import time

import numpy as np

from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.log import fmt, logger
from pycaffe_dist.net import Net
from pycaffe_dist.solvers import testing
from pycaffe_dist.solvers.engine import Engine
from pycaffe_dist.solvers.state import TrainState


class Display:
    """Remembers when it was last shown, for the iterations per second since then."""

    def __init__(self, interval: int):
        self._interval = interval
        self._exchange = (0.0, 0.0)  # seconds of messages under way, and of waiting for them
        self.begin(0)

    def is_due(self, iteration: int) -> bool:
        """Tell whether to show an iteration."""
        return bool(self._interval) and iteration % self._interval == 0

    def begin(self, iteration: int) -> None:
        """Count from now on."""
        self._shown = iteration, time.monotonic()

    def show(
        self, state: TrainState, net: Net, cluster: Cluster, engine: Engine
    ) -> np.ndarray | None:
        """Log the current iteration; only rank 0 waits for the others.

        Returns the mean loss and outputs on rank 0, None on others.
        """
        outputs = net.shard.weight * testing.read_outputs(net)
        values = np.concatenate([[state.losses.mean], outputs])
        means = cluster.mean_on_rank_0(values)
        if means is None:
            return None
        iteration, now = state.iteration, time.monotonic()
        since, at = self._shown
        self._shown = iteration, now
        exchange = engine.seconds_under_way, engine.seconds_waited
        under_way, waited = (new - old for new, old in zip(exchange, self._exchange))
        self._exchange = exchange
        if under_way > 0 and iteration:
            logger.info(
                "Iteration %d: %.3f s of exchange, %.0f %% hidden behind computing",
                *(iteration, under_way, 100 * max(0.0, 1 - waited / under_way)),
            )
        logger.info(
            "Iteration %d (%s iter/s, %ss/%d iters), loss = %s",
            iteration,
            fmt((iteration - since) / max(now - at, 1e-9)),
            fmt(round(now - at, 3)),
            self._interval,
            fmt(float(means[0])),
        )
        testing.log_outputs(net, "Train", testing.by_output(net, means[1:].tolist()))
        return means

    def show_last(self, state: TrainState, net: Net, cluster: Cluster) -> float:
        """Run forward once more after the last iteration; log and return the loss."""
        state.losses.recent.append(net.forward() * net.shard.weight)
        loss = float(cluster.mean(np.array([state.losses.mean]))[0])
        logger.info("Iteration %d, loss = %s", state.iteration, fmt(loss))
        return loss
