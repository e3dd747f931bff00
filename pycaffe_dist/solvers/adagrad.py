"""AdaGrad: the rate of each weight falls with its summed squared gradients."""

from __future__ import annotations

from pycaffe_dist.kernels.update import adagrad_update
from pycaffe_dist.solvers.method import Method, Regularization, register


@register("AdaGrad")
class AdaGrad(Method):
    """AdaGrad: the rate of each weight falls with its summed squared gradients."""

    def update(
        self, index: int, rate: float, regularization: Regularization, iteration: int
    ) -> None:
        blob = self.parameters[index].blob
        adagrad_update(
            blob.data, blob.diff, self.slot(index), regularization, rate, self.param.delta
        )
