"""The losses of a run: the last ones, for display, and checks that each is finite."""

from __future__ import annotations

import math
from collections import deque

from pycaffe_dist.errors import NumericError
from pycaffe_dist.log import logger
from pycaffe_dist.net import Net


class Losses:
    """This rank's losses of the last iterations, at most ``window`` of them.

    ``stop_at_nan`` says whether one that is NaN or infinite ends the run.
    """

    def __init__(self, window: int, stop_at_nan: bool):
        self.recent: deque[float] = deque(maxlen=window)
        self.go_on = False  # whether the next loop of iterations begins with a snapshot's losses
        self._stop_at_nan = stop_at_nan
        self._finite = True

    def begin(self) -> None:
        """Forget the losses of another loop of iterations."""
        if not self.go_on:
            self.recent.clear()
        self.go_on = False

    @property
    def mean(self) -> float:
        """The mean of the last losses, for display."""
        return sum(self.recent) / len(self.recent)

    def check(self, loss: float, iteration: int, net: Net) -> None:
        """Raise NumericError, or warn if training is to go on, when the loss is not finite."""
        was_finite, self._finite = self._finite, math.isfinite(loss)
        if self._finite:
            return
        if self._stop_at_nan:
            where = net.first_not_finite() or "from a sum that overflowed"
            raise NumericError(
                f"iteration {iteration}: the loss is {loss}, {where}; "
                "a lower learning rate or clip_gradients may help"
            )
        if was_finite:
            logger.warning("Iteration %d: the loss is %s; going on", iteration, loss)
