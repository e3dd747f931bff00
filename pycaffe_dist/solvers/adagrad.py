"""AdaGrad: the rate of each weight falls with its summed squared gradients."""

from __future__ import annotations

from pycaffe_dist.kernels.update import adagrad_update
from pycaffe_dist.solvers.method import Method, register


@register("AdaGrad")
class AdaGrad(Method):
    """AdaGrad: the rate of each weight falls with its summed squared gradients."""

    takes_momentum = False
    step = staticmethod(adagrad_update)

    def scalars(self, iteration: int) -> tuple[float, ...]:
        """Return what `step` takes after the rate."""
        return (self.param.delta,)
