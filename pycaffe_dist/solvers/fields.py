"""Checks of a solver's fields, before anything is made from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycaffe_dist.errors import PrototxtError, UsageError
from pycaffe_dist.schema import text
from pycaffe_dist.schema.places import line_named_by
from pycaffe_dist.solvers.average_precision import VERSIONS
from pycaffe_dist.solvers.lr_policy import LearningRate
from pycaffe_dist.solvers.method import method_class

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter

_NAMES = {
    "regularization_type": ("L1", "L2"),
    "eval_type": ("classification", "detection"),
    "ap_version": tuple(VERSIONS),
    "averaging": ("", "EMA", "SWA"),
    "best_is": ("", "max", "min"),
}

_LEAST = {
    "average_loss": 1,
    "iter_size": 1,
    "averaging_start": 0,
    "averaging_period": 1,
    "patience": 0,
}


def check_file(param: SolverParameter, file: str) -> None:
    """Raise PrototxtError, with file and line, when a solver's own fields cannot be used."""
    try:
        check_fields(param)
        LearningRate(param)
        method_class(param.type)
    except UsageError as error:
        line = line_named_by(str(error), text.read_text(file))
        raise PrototxtError(str(error), file, line) from None


def check_fields(param: SolverParameter) -> None:
    """Raise UsageError when a field of a SolverParameter has a value that means nothing."""
    if param.max_time < 0:
        raise UsageError(f"max_time must be at least 0 seconds, found {param.max_time:g}")
    if not 0 <= param.averaging_decay < 1:
        raise UsageError(
            f"averaging_decay must be at least 0 and below 1, found {param.averaging_decay:g}"
        )
    for field, least in _LEAST.items():
        if getattr(param, field) < least:
            raise UsageError(f"{field} must be at least {least}, found {getattr(param, field)}")
    if not param.best_output and (param.patience or param.best_is):
        raise UsageError("patience and best_is need a best_output, which names a test output")
    for field, known in _NAMES.items():
        name = getattr(param, field)
        if name not in known:
            raise UsageError(
                f"unknown {field} '{name}'; known are {', '.join(filter(None, known))}"
            )
