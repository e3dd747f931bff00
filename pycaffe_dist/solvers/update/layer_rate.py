"""LARS and LARC: a rate for each parameter, from the norms of its weights and its gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.errors import UsageError
from pycaffe_dist.solvers.update.target import UpdateTarget

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter

_POLICIES = ("", "scale", "clip")


class LayerRate:
    """Changes the learning rate of every parameter as ``larc_policy`` says; not in Caffe.

    With w and g the norms of weights and mean gradient and d the weight decay, the trust is
    larc_eta·w / (g + d·w).  "scale" multiplies the rate by it (LARS: You, Gitman and Ginsburg,
    2017); "clip" limits the rate to it (LARC).  Parameters of one axis (biases, scales) or
    with a norm of 0 keep the rate.  Raises UsageError for an unknown policy.
    """

    def __init__(self, param: SolverParameter):
        if param.larc_policy not in _POLICIES:
            raise UsageError(
                f"unknown larc_policy '{param.larc_policy}'; known are scale (LARS) and clip (LARC)"
            )
        self._policy: str = param.larc_policy
        self._eta: float = param.larc_eta

    def of(self, target: UpdateTarget, rate: float, scale: float, decay: float) -> float:
        """Return the rate of a target whose mean gradient is ``scale`` times its own."""
        if not self._policy or target.weights.ndim < 2:
            return rate
        weights, gradient = _norm(target.weights), scale * _norm(target.gradient)
        if not weights or not gradient:
            return rate
        trust = self._eta * weights / (gradient + decay * weights)
        return rate * trust if self._policy == "scale" else min(rate, trust)


def _norm(array: np.ndarray) -> float:
    flat = array.reshape(-1)
    return math.sqrt(float(np.dot(flat, flat)))
