"""What a solver method is: its history, and the update of one parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import HOST, Device, use
from pycaffe_dist.errors import UsageError
from pycaffe_dist.net import Parameter
from pycaffe_dist.registry import Registry


class Regularization(NamedTuple):
    """How the raw diff becomes a gradient: ``scale·diff + l2·w + l1·sign(w)``."""

    scale: float
    l2: float
    l1: float


class Method:
    """The base of the six methods; ``step`` is the kernel that updates a parameter.

    Each of ``parameters`` has ``slots`` arrays of history, zero at first and allocated when they
    are first asked for: one that is updated elsewhere takes no memory here.  ``param`` is the
    SolverParameter, ``device`` that of the parameters.  Raises UsageError for a field that the
    method cannot use.
    """

    type: ClassVar[str]
    slots: ClassVar[int] = 1
    step: ClassVar[Callable[..., None]]
    takes_momentum: ClassVar[bool] = True

    def __init__(self, param: Any, parameters: Sequence[Parameter], device: Device = HOST):
        if param.momentum and not self.takes_momentum:
            raise UsageError(f"{self.type} takes no momentum, found {param.momentum:g}")
        self.param = param
        self.parameters = parameters
        self._device = device
        self._slots: dict[tuple[int, int], Blob] = {}

    def slot(self, index: int, number: int = 0) -> np.ndarray:
        """Return the history of parameter ``index`` in slot ``number``, on the current device."""
        slot = self._slots.get((number, index))
        if slot is None:
            weights = self.parameters[index].blob.data
            with use(self._device):
                slot = self._slots[number, index] = Blob(weights.shape, weights.dtype)
        return slot.data

    def borrow(self, index: int, number: int, array: np.ndarray) -> None:
        """Let the history of parameter ``index`` in a slot be an array that others have, too."""
        self._slots[number, index] = cast("Blob", SimpleNamespace(data=array))

    def holds(self, index: int) -> bool:
        """Tell whether there is history of parameter ``index``."""
        return (0, index) in self._slots

    @property
    def history(self) -> list[np.ndarray]:
        """All arrays, slot by slot: the order of Caffe's solver states."""
        return [
            self.slot(index, number)
            for number in range(self.slots)
            for index in range(len(self.parameters))
        ]

    def release(self, index: int) -> None:
        """Forget the history of parameter ``index`` and give its memory back."""
        for number in range(self.slots):
            self._slots.pop((number, index), None)

    def update(
        self, index: int, rate: float, regularization: Regularization, iteration: int
    ) -> None:
        """Update parameter ``index`` in place from its diff; ``rate`` is its own learning rate."""
        rate *= self.correction(iteration)
        self.step(*self.arrays(index), regularization, rate, *self.scalars)

    def arrays(self, index: int) -> tuple[Any, ...]:
        """Return weights, diff and history of parameter ``index``, on the current device."""
        blob = self.parameters[index].blob
        return blob.data, blob.diff, *(self.slot(index, number) for number in range(self.slots))

    @property
    def scalars(self) -> tuple[float, ...]:
        """What `step` takes after the rate."""
        raise NotImplementedError(f"{type(self).__name__}.scalars")

    def correction(self, iteration: int) -> float:
        """Return what rates are multiplied by in an iteration, counted from 0."""
        return 1.0


_methods: Registry[Method] = Registry("solver type", "pycaffe_dist.solvers")
register = _methods.register


def method_class(name: str) -> type[Method]:
    """Return the class of a solver type; raises UsageError with the nearest known one."""
    return _methods.get(name)


def method_types() -> list[str]:
    """Return the names of all solver types, sorted."""
    return _methods.names()
