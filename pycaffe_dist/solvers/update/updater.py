"""The update of parameters, or of parts of them, by their mean gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from pycaffe_dist.device import HOST, Device, use
from pycaffe_dist.solvers.method import Regularization, method_class
from pycaffe_dist.solvers.update.layer_rate import LayerRate
from pycaffe_dist.solvers.update.target import UpdateTarget

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter

Target = TypeVar("Target", bound=UpdateTarget)
# Gets a target's index, the target or a part of it, and whether that has been updated, so that its
# gradient is the step.
Watch = Callable[[int, UpdateTarget, bool], None]


class Updater(Generic[Target]):
    """Updates ``targets`` on ``device`` as a SolverParameter says; ``method`` holds their history.

    ``watch`` is called before and after each update.  Raises PcaffeError for an unknown solver type
    or larc_policy.
    """

    def __init__(self, param: SolverParameter, targets: Sequence[Target], device: Device = HOST):
        self.param = param
        self.targets = targets
        self.device = device
        self.method = method_class(param.type)(param, targets, device)
        self.watch: Watch | None = None
        self._layer_rate = LayerRate(param)

    def update(self, index: int, rate: float, iteration: int, clipping: float = 1.0) -> None:
        """Update target ``index`` in place from its gradient, the sum over iter_size passes.

        ``rate`` is the learning rate before multipliers, ``clipping`` a factor for the gradient.
        """
        with use(self.device):
            history = self.method.history_of(index)
            self.update_part(index, self.targets[index], history, rate, iteration, clipping)

    def update_part(
        self,
        index: int,
        part: UpdateTarget,
        history: Sequence[np.ndarray],
        rate: float,
        iteration: int,
        clipping: float = 1.0,
    ) -> None:
        """Update a part of target ``index``, or all of it, with a ``history`` of its shape."""
        scale = self.scale(clipping)
        l2, l1 = self.decays(part)
        rate = self._layer_rate.of(part, rate, scale, l2 + l1) * part.lr_mult
        arrays = part.weights, part.gradient, *history
        if self.watch:
            self.watch(index, part, False)
        self.method.update_arrays(arrays, rate, Regularization(scale, l2, l1), iteration)
        if self.watch:
            self.watch(index, part, True)

    def scale(self, clipping: float) -> float:
        """Return what gradients are multiplied by."""
        return 1.0 / self.param.iter_size * clipping

    def decays(self, target: UpdateTarget) -> tuple[float, float]:
        """Return the factors of a target's L2 and L1 decay, of which one is 0."""
        decay = self.param.weight_decay * target.decay_mult
        kind = target.regularization or self.param.regularization_type
        return (0.0, decay) if kind == "L1" else (decay, 0.0)
