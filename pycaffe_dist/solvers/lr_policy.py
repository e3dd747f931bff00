"""Learning-rate policies: the rate of an iteration, from the solver's fields alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pycaffe_dist.errors import UsageError, did_you_mean
from pycaffe_dist.log import logger


class LearningRate:
    """The learning rate over the iterations of one run.

    ``current_step`` is what a solver state keeps for the step and multistep policies.  Raises
    UsageError for an unknown policy or a field out of range.
    """

    def __init__(self, param: Any):
        self._param = param
        self.current_step = 0
        policies: dict[str, Callable[[int], float]] = {
            "fixed": self._fixed,
            "step": self._step,
            "exp": self._exp,
            "inv": self._inv,
            "multistep": self._multistep,
            "poly": self._poly,
            "sigmoid": self._sigmoid,
        }
        name = param.lr_policy
        if name not in policies:
            hint = did_you_mean(name, policies) or f"; known are {', '.join(policies)}"
            raise UsageError(f"unknown lr_policy '{name}'{hint}")
        if name in ("step", "sigmoid") and param.stepsize <= 0:
            raise UsageError(f"lr_policy '{name}' needs a stepsize above 0, found {param.stepsize}")
        if name not in ("fixed", "poly") and param.gamma < 0:
            raise UsageError(f"lr_policy '{name}' needs a gamma of at least 0, got {param.gamma:g}")
        self._policy = policies[name]

    def at(self, iteration: int) -> float:
        """Return the rate of ``iteration``; iterations must be asked for in order."""
        return self._policy(iteration)

    def state(self) -> dict[str, Any]:
        """Return what the next rates depend on beside the iteration, for JSON."""
        return {"current_step": self.current_step}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self.current_step = state["current_step"]

    def _fixed(self, iteration: int) -> float:
        return self._param.base_lr

    def _step(self, iteration: int) -> float:
        self.current_step = iteration // self._param.stepsize
        return self._param.base_lr * self._param.gamma**self.current_step

    def _exp(self, iteration: int) -> float:
        return self._param.base_lr * self._param.gamma**iteration

    def _inv(self, iteration: int) -> float:
        p = self._param
        return p.base_lr * (1.0 + p.gamma * iteration) ** -p.power

    def _multistep(self, iteration: int) -> float:
        steps = self._param.stepvalue
        if self.current_step < len(steps) and iteration >= steps[self.current_step]:
            self.current_step += 1
            logger.info("MultiStep Status: Iteration %d, step = %d", iteration, self.current_step)
        return self._param.base_lr * self._param.gamma**self.current_step

    def _poly(self, iteration: int) -> float:
        p = self._param
        return p.base_lr * (1.0 - iteration / p.max_iter) ** p.power

    def _sigmoid(self, iteration: int) -> float:
        p = self._param
        return p.base_lr / (1.0 + math.exp(-p.gamma * (iteration - p.stepsize)))
