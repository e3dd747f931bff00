"""RMSProp: gradients divided by a running root mean square."""

from __future__ import annotations

from pycaffe_dist.kernels.update import rmsprop_update
from pycaffe_dist.solvers.method import Method, register


@register("RMSProp")
class RMSProp(Method):
    """RMSProp: gradients divided by a running root mean square."""

    step = staticmethod(rmsprop_update)

    @property
    def scalars(self) -> tuple[float, ...]:
        """What `step` takes after the rate."""
        return self.param.rms_decay, self.param.delta
