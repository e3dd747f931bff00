"""The norm of all gradients of an iteration: clipping, and overflows under a loss scale."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist.device import use
from pycaffe_dist.log import fmt, logger
from pycaffe_dist.net import Net
from pycaffe_dist.solvers.engine import Engine
from pycaffe_dist.solvers.state import TrainState

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter


def why_together(param: SolverParameter) -> str:
    """Name the field that makes a solver look at all gradients before any update; or nothing."""
    if param.clip_gradients >= 0:
        return "clip_gradients"
    return "data_type float16" if param.data_type == "float16" else ""


def factor(param: SolverParameter, state: TrainState, net: Net, engine: Engine) -> float | None:
    """Return the factor of all mean gradients, or None to leave this update out.

    It undoes the loss scale, and brings the norm (before iter_size) within the limit of
    clip_gradients.  An update is left out when a gradient has overflowed in float16.
    """
    if not why_together(param):
        return 1.0
    norm, scale = _norm(net, engine), state.loss_scale
    unscaled = 1.0
    if scale is not None:
        unscaled = 1.0 / scale.value
        if not scale.judge(norm):
            logger.info(
                "Iteration %d: a gradient overflowed float16: no update; loss scale %s",
                state.iteration,
                fmt(scale.value),
            )
            return None
    norm, limit = norm * unscaled, param.clip_gradients
    if limit < 0 or norm <= limit:
        return unscaled
    logger.info(
        "Gradient clipping: scaling down gradients (L2 norm %s > %s) by scale factor %s",
        fmt(norm),
        fmt(limit),
        fmt(limit / norm),
    )
    return unscaled * (limit / norm)


def _norm(net: Net, engine: Engine) -> float:
    """Return the norm of all mean gradients, once they are there."""
    squares: Any = 0.0  # on a GPU until all are added
    for parameter in reversed(net.parameters):
        engine.wait(parameter)
        with use(net.device):
            flat = parameter.blob.diff.reshape(-1)
            squares = squares + np.dot(flat, flat).astype(np.float64)
    with use(net.device):
        return math.sqrt(float(squares))
