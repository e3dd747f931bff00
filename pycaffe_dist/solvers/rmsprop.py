"""RMSProp: gradients divided by a running root mean square."""

from __future__ import annotations

from pycaffe_dist.kernels.update import rmsprop_update
from pycaffe_dist.solvers.method import Method, Regularization, register


@register("RMSProp")
class RMSProp(Method):
    """RMSProp: gradients divided by a running root mean square."""

    def update(
        self, index: int, rate: float, regularization: Regularization, iteration: int
    ) -> None:
        blob = self.parameters[index].blob
        rmsprop_update(
            blob.data,
            blob.diff,
            self.slot(index),
            regularization,
            rate,
            self.param.rms_decay,
            self.param.delta,
        )
