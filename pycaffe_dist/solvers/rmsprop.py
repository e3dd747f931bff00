"""RMSProp: gradients divided by a running root mean square."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pycaffe_dist.errors import UsageError
from pycaffe_dist.kernels.update import rmsprop_update
from pycaffe_dist.solvers.method import Method, register

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter


@register("RMSProp")
class RMSProp(Method):
    """RMSProp: gradients divided by a running root mean square."""

    takes_momentum = False
    step = staticmethod(rmsprop_update)

    def __init__(self, param: SolverParameter, *rest: Any):
        super().__init__(param, *rest)
        if not 0 <= param.rms_decay < 1:
            raise UsageError(f"rms_decay must be at least 0 and below 1, found {param.rms_decay:g}")

    def scalars(self, iteration: int) -> tuple[float, ...]:
        """Return what `step` takes after the rate."""
        return self.param.rms_decay, self.param.delta
