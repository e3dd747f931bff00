"""Nesterov's accelerated gradient."""

from __future__ import annotations

from pycaffe_dist.kernels.update import nesterov_update
from pycaffe_dist.solvers.method import Method, Regularization, register


@register("Nesterov")
class Nesterov(Method):
    """Nesterov's accelerated gradient."""

    def update(
        self, index: int, rate: float, regularization: Regularization, iteration: int
    ) -> None:
        blob = self.parameters[index].blob
        nesterov_update(
            blob.data, blob.diff, self.slot(index), regularization, rate, self.param.momentum
        )
