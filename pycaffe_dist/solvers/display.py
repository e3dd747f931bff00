"""What the log says every ``display`` iterations: speed, loss and outputs, the means over ranks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.log import fmt, logger
from pycaffe_dist.solvers import testing

if TYPE_CHECKING:
    from pycaffe_dist.solvers.solver import Solver


class Display:
    """Remembers when it was last shown, for the iterations per second since then."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, iteration: int) -> None:
        """Count from now on."""
        self._shown = iteration, time.monotonic()

    def show(self, solver: Solver) -> None:
        """Log the current iteration; only rank 0 waits for the others."""
        values = [solver.losses.mean]
        for name in solver.net.outputs:
            values += solver.net.blobs[name].read_data().reshape(-1).tolist()
        means = solver.cluster.mean_on_rank_0(np.array(values, np.float64))
        if means is None:
            return
        iteration, now = solver.iteration, time.monotonic()
        since, at = self._shown
        self._shown = iteration, now
        hidden = solver.engine.hidden()
        if hidden and iteration:
            logger.info("Iteration %d: %s", iteration, hidden)
        logger.info(
            "Iteration %d (%s iter/s, %ss/%d iters), loss = %s",
            iteration,
            fmt((iteration - since) / max(now - at, 1e-9)),
            fmt(round(now - at, 3)),
            solver.param.display,
            fmt(float(means[0])),
        )
        testing.log_outputs(solver.net, "Train", means[1:].tolist())
