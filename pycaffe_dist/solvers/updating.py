"""The update of parameters, or of parts of them, by their mean gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycaffe_dist.device import HOST, Device, use
from pycaffe_dist.kernels.update import UpdateOfMany
from pycaffe_dist.net import Parameter
from pycaffe_dist.solvers.layer_rate import LayerRate
from pycaffe_dist.solvers.method import Regularization, method_class


class Updater:
    """Updates ``parameters`` as a SolverParameter says; ``method`` holds their history.

    It runs on ``device``, that of the parameters, of which it reads ``blob``, ``shape``,
    ``lr_mult`` and ``decay_mult``.  Raises PcaffeError for an unknown solver type or larc_policy.
    """

    def __init__(self, param: Any, parameters: Sequence[Parameter], device: Device = HOST):
        self.param = param
        self.parameters = parameters
        self.method = method_class(param.type)(param, parameters, device)
        self._device = device
        self._layer_rate = LayerRate(param)
        self._many: UpdateOfMany | None = None
        self._arrays: list[tuple] = []  # those that it was made for

    def update(self, index: int, rate: float, iteration: int, clipping: float = 1.0) -> None:
        """Update parameter ``index`` in place from its diff, the sum over iter_size passes.

        ``rate`` is the learning rate before multipliers, ``clipping`` a factor for the gradient.
        """
        parameter = self.parameters[index]
        scale = 1.0 / self.param.iter_size * clipping
        l2, l1 = self._decays(parameter)
        with use(self._device):
            rate = self._layer_rate.of(parameter, rate, scale, l2 + l1)
            regularization = Regularization(scale, l2, l1)
            self.method.update(index, rate * parameter.lr_mult, regularization, iteration)

    @property
    def gains_by_many(self) -> bool:
        """Whether `update_many` is quicker: a GPU's host spends its time on launches."""
        return self._device.is_gpu and not self.param.larc_policy

    def update_many(
        self, indices: Sequence[int], rate: float, iteration: int, clipping: float = 1.0
    ) -> None:
        """Do as `update` for several parameters; not with a larc_policy."""
        if not indices:
            return
        method = self.method
        with use(self._device):
            arrays = [method.arrays(index) for index in indices]
            if self._many is None or not _are_the_same(arrays, self._arrays):
                parameters = [self.parameters[index] for index in indices]
                settings = [(*self._decays(each), each.lr_mult) for each in parameters]
                self._many = UpdateOfMany(method.step, arrays, settings)
                self._arrays = arrays
            scale = 1.0 / self.param.iter_size * clipping
            self._many.run(scale, rate * method.correction(iteration), method.scalars)

    def _decays(self, parameter: Parameter) -> tuple[float, float]:
        """Return the factors of a parameter's L2 and L1 decay, of which one is 0."""
        decay = self.param.weight_decay * parameter.decay_mult
        return (0.0, decay) if self.param.regularization_type == "L1" else (decay, 0.0)


def _are_the_same(arrays: list[tuple], others: list[tuple]) -> bool:
    """Tell whether all arrays are the same objects."""
    return len(arrays) == len(others) and all(
        one is other for own, theirs in zip(arrays, others) for one, other in zip(own, theirs)
    )
