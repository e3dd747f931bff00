"""Mixed precision: data in 16 bits, parameters in float32, and a loss scaled up in between."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.device import Device
from pycaffe_dist.errors import UsageError
from pycaffe_dist.precision import bfloat16

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter

_FIRST = 2.0**15
_LARGEST = 2.0**24
# A dynamic scale doubles after this number of iterations without an overflow.
_PATIENCE = 1000


def data_type(param: SolverParameter, device: Device) -> np.dtype:
    """Return the type of a SolverParameter's ``data_type``; raises UsageError."""
    if param.data_type == "float32":
        return np.dtype(np.float32)
    if param.data_type not in ("float16", "bfloat16"):
        raise UsageError(
            f"unknown data_type '{param.data_type}'; known are float32, float16 and bfloat16"
        )
    if not device.is_gpu:
        raise UsageError(f"data_type {param.data_type} needs a GPU, and this run is on the CPU")
    if param.loss_scale < 0:
        raise UsageError(f"loss_scale must be at least 0, found {param.loss_scale:g}")
    if param.data_type == "float16":
        return np.dtype(np.float16)
    if param.loss_scale:
        raise UsageError("loss_scale is for float16: bfloat16 has the range of float32")
    return bfloat16()


class LossScale:
    """The factor that keeps small gradients from vanishing in float16.

    ``fixed`` 0 means a dynamic one: it halves when a gradient overflows and doubles after 1000
    iterations in which none did.  (Micikevicius et al., Mixed Precision Training, 2018.)
    """

    def __init__(self, fixed: float):
        self._is_dynamic = fixed == 0
        self.value = fixed or _FIRST
        self._good = 0

    def judge(self, norm: float) -> bool:
        """Take note of the norm of all scaled gradients; tell whether they are of use."""
        if math.isfinite(norm):
            self._good += 1
            if self._is_dynamic and self._good >= _PATIENCE:
                self.value, self._good = min(2 * self.value, _LARGEST), 0
            return True
        self._good = 0
        if self._is_dynamic:
            self.value = max(1.0, self.value / 2)
        return False

    def state(self) -> list[float]:
        """Return what the next iteration depends on."""
        return [self.value, self._good]

    def set_state(self, state: list[float]) -> None:
        """Go on from what `state` returned, if the scale is a dynamic one."""
        if self._is_dynamic:
            self.value, self._good = state[0], int(state[1])
