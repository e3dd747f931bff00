"""AdaDelta: steps in the units of the weights, from two running averages."""

from __future__ import annotations

from pycaffe_dist.kernels.update import adadelta_update
from pycaffe_dist.solvers.method import Method, register


@register("AdaDelta")
class AdaDelta(Method):
    """AdaDelta: steps in the units of the weights, from two running averages."""

    slots = 2
    step = staticmethod(adadelta_update)

    def scalars(self, iteration: int) -> tuple[float, ...]:
        """Return what `step` takes after the rate."""
        return self.param.momentum, self.param.delta
