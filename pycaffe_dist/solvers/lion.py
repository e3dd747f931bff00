"""Lion: steps of one size, with the sign of a mean of gradients."""

from __future__ import annotations

from pycaffe_dist.kernels.update import lion_update
from pycaffe_dist.solvers.method import register
from pycaffe_dist.solvers.moments import Moments


@register("Lion")
class Lion(Moments):
    """Lion (Chen et al., 2023): steps of one size, with the sign of a mean of gradients.

    Weights decay by rate·decay beside the step.
    """

    step = staticmethod(lion_update)
    usual = (0.9, 0.99)

    def scalars(self, iteration: int) -> tuple[float, ...]:
        """Return what `step` takes after the rate."""
        return self.decays
