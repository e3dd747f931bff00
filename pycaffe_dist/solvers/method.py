"""What a solver method is: its history, and the update of one target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import HOST, Device, use
from pycaffe_dist.errors import UsageError
from pycaffe_dist.registry import Registry

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter
    from pycaffe_dist.solvers.update.target import UpdateTarget


class Regularization(NamedTuple):
    """How the raw diff becomes a gradient: ``scale·diff + l2·w + l1·sign(w)``."""

    scale: float
    l2: float
    l1: float


class Method:
    """The base of all methods; ``step`` is the kernel that updates a target.

    Each of ``targets`` has ``slots`` arrays of history, zero at first and allocated when they are
    first asked for: one that is updated elsewhere takes no memory here.  ``param`` is the
    SolverParameter; the targets are on ``device``.  Raises UsageError for a field that the method
    cannot use.
    """

    type: ClassVar[str]
    slots: ClassVar[int] = 1
    step: ClassVar[Callable[..., None]]
    takes_momentum: ClassVar[bool] = True

    def __init__(
        self,
        param: SolverParameter,
        targets: Sequence[UpdateTarget],
        device: Device = HOST,
    ):
        if param.momentum and not self.takes_momentum:
            raise UsageError(f"{self.type} takes no momentum, found {param.momentum:g}")
        self.param = param
        self.targets = targets
        self._device = device
        self._slots: dict[tuple[int, int], Blob] = {}

    def slot(self, index: int, number: int = 0) -> np.ndarray:
        """Return the history of target ``index`` in slot ``number``, on the current device."""
        slot = self._slots.get((number, index))
        if slot is None:
            weights = self.targets[index].weights
            with use(self._device):
                slot = self._slots[number, index] = Blob(weights.shape, weights.dtype)
        return slot.data

    def history_of(self, index: int) -> list[np.ndarray]:
        """Return the history of target ``index`` in all slots, on the current device."""
        return [self.slot(index, number) for number in range(self.slots)]

    def holds(self, index: int) -> bool:
        """Tell whether there is history of target ``index``."""
        return (0, index) in self._slots

    @property
    def history(self) -> list[np.ndarray]:
        """All arrays, slot by slot: the order of Caffe's solver states."""
        return [
            self.slot(index, number)
            for number in range(self.slots)
            for index in range(len(self.targets))
        ]

    def release(self, index: int) -> None:
        """Forget the history of target ``index`` and give its memory back."""
        for number in range(self.slots):
            self._slots.pop((number, index), None)

    def update(
        self, index: int, rate: float, regularization: Regularization, iteration: int
    ) -> None:
        """Update target ``index`` in place; ``rate`` is its own learning rate."""
        self.update_arrays(self.arrays(index), rate, regularization, iteration)

    def update_arrays(
        self,
        arrays: tuple[np.ndarray, ...],
        rate: float,
        regularization: Regularization,
        iteration: int,
    ) -> None:
        """Do as `update` with arrays such as `arrays` returns."""
        rate *= self.correction(iteration)
        self.step(*arrays, regularization, rate, *self.scalars(iteration))

    def arrays(self, index: int) -> tuple[np.ndarray, ...]:
        """Return weights, gradient and history of target ``index``, on the current device."""
        target = self.targets[index]
        return target.weights, target.gradient, *self.history_of(index)

    def scalars(self, iteration: int) -> tuple[float, ...]:
        """Return what `step` takes after the rate, in an iteration counted from 0."""
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
