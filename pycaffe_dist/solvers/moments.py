"""What methods share that keep running means of the gradient: Adam, AdamW, Lion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pycaffe_dist.errors import UsageError
from pycaffe_dist.solvers.method import Method

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter


class Moments(Method):
    """A method whose means decay by ``momentum`` and ``momentum2``.

    ``usual`` has the values of fields that the solver does not give.
    """

    usual: ClassVar[tuple[float, float]]

    def __init__(self, param: SolverParameter, *rest: Any):
        super().__init__(param, *rest)
        for name, value in zip(("momentum", "momentum2"), self.decays):
            if not 0 <= value < 1:
                raise UsageError(
                    f"{self.type} needs a {name} of at least 0 and below 1, found {value:g}"
                )

    @property
    def decays(self) -> tuple[float, float]:
        """Momentum and momentum2."""
        return self.decays_of(self.param)

    @classmethod
    def decays_of(cls, param: SolverParameter) -> tuple[float, float]:
        """Return momentum and momentum2 of a solver, or what is usual."""
        first, second = cls.usual
        return (
            param.momentum if param.HasField("momentum") else first,
            param.momentum2 if param.HasField("momentum2") else second,
        )
