"""Nesterov's accelerated gradient."""

from __future__ import annotations

from pycaffe_dist.kernels.update import nesterov_update
from pycaffe_dist.solvers.method import Method, register


@register("Nesterov")
class Nesterov(Method):
    """Nesterov's accelerated gradient."""

    step = staticmethod(nesterov_update)

    def scalars(self, iteration: int) -> tuple[float, ...]:
        """Return what `step` takes after the rate."""
        return (self.param.momentum,)
