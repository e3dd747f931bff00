"""The update of parameters, or of parts of them, by their mean gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycaffe_dist.device import HOST, Device, use
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

    def update(self, index: int, rate: float, iteration: int, clipping: float = 1.0) -> None:
        """Update parameter ``index`` in place from its diff, the sum over iter_size passes.

        ``rate`` is the learning rate before multipliers, ``clipping`` a factor for the gradient.
        """
        param, parameter = self.param, self.parameters[index]
        scale = 1.0 / param.iter_size * clipping
        decay = param.weight_decay * parameter.decay_mult
        l1 = decay if param.regularization_type == "L1" else 0.0
        regularization = Regularization(scale, decay - l1, l1)
        with use(self._device):
            rate = self._layer_rate.of(parameter, rate, scale, decay)
            self.method.update(index, rate * parameter.lr_mult, regularization, iteration)
