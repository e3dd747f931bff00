"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from pycaffe_dist.kernels.update import sgd_update
from pycaffe_dist.solvers.method import Method, register


@register("SGD")
class SGD(Method):
    """Stochastic gradient descent with momentum."""

    step = staticmethod(sgd_update)

    def scalars(self, iteration: int) -> tuple[float, ...]:
        """Return what `step` takes after the rate."""
        return (self.param.momentum,)
