"""AdaDelta: steps in the units of the weights, from two running averages."""

from __future__ import annotations

from pycaffe_dist.kernels.update import adadelta_update
from pycaffe_dist.solvers.method import Method, Regularization, register


@register("AdaDelta")
class AdaDelta(Method):
    """AdaDelta: steps in the units of the weights, from two running averages."""

    slots = 2

    def update(
        self, index: int, rate: float, regularization: Regularization, iteration: int
    ) -> None:
        blob = self.parameters[index].blob
        adadelta_update(
            blob.data,
            blob.diff,
            self.slot(index),
            self.slot(index, 1),
            regularization,
            rate,
            self.param.momentum,
            self.param.delta,
        )
