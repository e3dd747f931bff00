"""Checks of a solver's fields, before anything is made from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycaffe_dist.errors import UsageError

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter

_REGULARIZATIONS = ("L1", "L2")


def check_fields(param: SolverParameter) -> None:
    """Raise UsageError when a field of a SolverParameter has a value that means nothing."""
    if param.max_time < 0:
        raise UsageError(f"max_time must be at least 0 seconds, found {param.max_time:g}")
    if param.average_loss < 1:
        raise UsageError(f"average_loss must be at least 1, found {param.average_loss}")
    if param.iter_size < 1:
        raise UsageError(f"iter_size must be at least 1, found {param.iter_size}")
    if param.regularization_type not in _REGULARIZATIONS:
        raise UsageError(
            f"unknown regularization_type '{param.regularization_type}'; "
            f"known are {', '.join(_REGULARIZATIONS)}"
        )
