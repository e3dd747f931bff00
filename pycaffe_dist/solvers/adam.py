"""Adam: running mean and variance of the gradient, corrected for their start."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

from pycaffe_dist.errors import UsageError
from pycaffe_dist.kernels.update import adam_update
from pycaffe_dist.solvers.method import Method, register

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter


@register("Adam")
class Adam(Method):
    """Adam: running mean and variance of the gradient, corrected for their start."""

    slots = 2
    step = staticmethod(adam_update)

    def __init__(self, param: SolverParameter, *rest: Any):
        super().__init__(param, *rest)
        for name in ("momentum", "momentum2"):
            value = getattr(param, name)
            if not 0 <= value < 1:
                raise UsageError(f"Adam needs a {name} of at least 0 and below 1, found {value:g}")

    @property
    def scalars(self) -> tuple[float, ...]:
        """What `step` takes after the rate."""
        return self.param.momentum, self.param.momentum2, self.param.delta

    def correction(self, iteration: int) -> float:
        """Return what makes up for averages that begin at zero."""
        t = iteration + 1
        return sqrt(1.0 - self.param.momentum2**t) / (1.0 - self.param.momentum**t)
