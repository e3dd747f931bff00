"""Adam: running mean and variance of the gradient, corrected for their start."""

from __future__ import annotations

from math import sqrt

from pycaffe_dist.kernels.update import adam_update
from pycaffe_dist.solvers.method import register
from pycaffe_dist.solvers.moments import Moments


@register("Adam")
class Adam(Moments):
    """Adam: running mean and variance of the gradient, corrected for their start."""

    slots = 2
    step = staticmethod(adam_update)
    usual = (0.0, 0.999)

    def scalars(self, iteration: int) -> tuple[float, ...]:
        """Return what `step` takes after the rate."""
        return *self.decays, self.param.delta

    def correction(self, iteration: int) -> float:
        """Return what makes up for averages that begin at zero."""
        first, second = self.decays
        t = iteration + 1
        return sqrt(1.0 - second**t) / (1.0 - first**t)
