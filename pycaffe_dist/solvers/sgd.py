"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from pycaffe_dist.kernels.update import sgd_update
from pycaffe_dist.solvers.method import Method, Regularization, register


@register("SGD")
class SGD(Method):
    """Stochastic gradient descent with momentum."""

    def update(
        self, index: int, rate: float, regularization: Regularization, iteration: int
    ) -> None:
        blob = self.parameters[index].blob
        sgd_update(
            blob.data, blob.diff, self.slot(index), regularization, rate, self.param.momentum
        )
