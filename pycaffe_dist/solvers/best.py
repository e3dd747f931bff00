"""The best value of a test output: its weights are kept, and training may stop without new ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pycaffe_dist.errors import UsageError, did_you_mean
from pycaffe_dist.log import fmt, logger
from pycaffe_dist.net import Net
from pycaffe_dist.solvers.detections import measured_outputs

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter


class Best:
    """Follows ``best_output`` of the first test net that has it; of several values, their mean.

    Without ``best_is``, a loss is best at its minimum, any other output at its maximum.  Raises
    UsageError when no test net has the output.
    """

    def __init__(self, param: SolverParameter, nets: Sequence[Net]):
        name = param.best_output
        outputs = [measured_outputs(net) for net in nets]
        known = [output for of_net in outputs for output in of_net]
        self.net = next((k for k, of_net in enumerate(outputs) if name in of_net), -1)
        if self.net < 0:
            hint = did_you_mean(name, known)
            hint = hint or f"; the test nets' outputs are: {', '.join(known) or 'none'}"
            raise UsageError(f"best_output: no test net has an output '{name}'{hint}")
        is_loss = bool(nets[self.net].blob_losses.get(name))
        self._sign = -1 if (param.best_is or ("min" if is_loss else "max")) == "min" else 1
        self._name, self._patience = name, param.patience
        self._value: float | None = None
        self._iteration = self._since = 0

    def read(self, values: Mapping[str, Sequence[float]]) -> float:
        """Return the output's value of a test of its net."""
        own = values[self._name]
        return sum(own) / len(own)

    def judge(self, value: float, iteration: int) -> bool:
        """Take note of a test's value; tell whether it is the best one so far."""
        # A NaN is neither kept nor better.
        first = self._value is None and not math.isnan(value)
        if first or (self._value is not None and self._sign * (value - self._value) > 0):
            self._value, self._iteration, self._since = value, iteration, 0
            return True
        self._since += 1
        return False

    def ends(self) -> bool:
        """Tell, and log, whether there has been no new best value for too long."""
        if not self._patience or self._since < self._patience:
            return False
        best = "none" if self._value is None else fmt(self._value)
        logger.info(
            "Stopping: no new best %s in %d tests (%s, iteration %d)",
            self._name,
            self._since,
            best,
            self._iteration,
        )
        return True

    def state(self) -> dict[str, Any]:
        """Return what the next tests are compared with, for JSON."""
        return {"value": self._value, "iteration": self._iteration, "since": self._since}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._value, self._iteration, self._since = (
            state[name] for name in ("value", "iteration", "since")
        )
