"""Checks of a solver's fields, before anything is made from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycaffe_dist.errors import UsageError
from pycaffe_dist.solvers.average_precision import VERSIONS

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter

_NAMES = {
    "regularization_type": ("L1", "L2"),
    "eval_type": ("classification", "detection"),
    "ap_version": tuple(VERSIONS),
}


def check_fields(param: SolverParameter) -> None:
    """Raise UsageError when a field of a SolverParameter has a value that means nothing."""
    if param.max_time < 0:
        raise UsageError(f"max_time must be at least 0 seconds, found {param.max_time:g}")
    if param.average_loss < 1:
        raise UsageError(f"average_loss must be at least 1, found {param.average_loss}")
    if param.iter_size < 1:
        raise UsageError(f"iter_size must be at least 1, found {param.iter_size}")
    for field, known in _NAMES.items():
        name = getattr(param, field)
        if name not in known:
            raise UsageError(f"unknown {field} '{name}'; known are {', '.join(known)}")
