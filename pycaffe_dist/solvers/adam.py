"""Adam: running mean and variance of the gradient, corrected for their start."""

from __future__ import annotations

from math import sqrt

from pycaffe_dist.kernels.update import adam_update
from pycaffe_dist.solvers.method import Method, Regularization, register


@register("Adam")
class Adam(Method):
    """Adam: running mean and variance of the gradient, corrected for their start."""

    slots = 2

    def update(
        self, index: int, rate: float, regularization: Regularization, iteration: int
    ) -> None:
        blob = self.parameters[index].blob
        beta1, beta2 = self.param.momentum, self.param.momentum2
        t = iteration + 1
        correction = sqrt(1.0 - beta2**t) / (1.0 - beta1**t)
        adam_update(
            blob.data,
            blob.diff,
            self.slot(index),
            self.slot(index, 1),
            regularization,
            rate * correction,
            beta1,
            beta2,
            self.param.delta,
        )
