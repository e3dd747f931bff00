"""What a solver method is: its history, and the update of one parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pycaffe_dist.net import Parameter
from pycaffe_dist.registry import Registry


class Regularization(NamedTuple):
    """How the raw diff becomes a gradient: ``scale·diff + l2·w + l1·sign(w)``."""

    scale: float
    l2: float
    l1: float


class Method:
    """The base of the six methods.

    ``history`` holds ``slots`` arrays per parameter, slot by slot, in the order of Caffe's solver
    states.  ``param`` is the SolverParameter.
    """

    type: ClassVar[str]
    slots: ClassVar[int] = 1

    def __init__(self, param: Any, parameters: Sequence[Parameter]):
        self.param = param
        self.parameters = parameters
        self.history = [
            np.zeros_like(parameter.blob.data)
            for _ in range(self.slots)
            for parameter in parameters
        ]

    def slot(self, index: int, number: int = 0) -> np.ndarray:
        """Return the history of parameter ``index`` in slot ``number``."""
        return self.history[number * len(self.parameters) + index]

    def update(
        self, index: int, rate: float, regularization: Regularization, iteration: int
    ) -> None:
        """Update parameter ``index`` in place from its diff; ``rate`` is its own learning rate."""
        raise NotImplementedError(f"{type(self).__name__}.update")


_methods: Registry[Method] = Registry("solver type", "pycaffe_dist.solvers")
register = _methods.register


def method_class(name: str) -> type[Method]:
    """Return the class of a solver type; raises PcaffeError with the nearest known one."""
    return _methods.get(name)


def method_types() -> list[str]:
    """Return the names of all solver types, sorted."""
    return _methods.names()
