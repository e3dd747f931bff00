"""Solvers: the training loop and the methods that update parameters, one file per method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pycaffe_dist.solvers.method import method_class, method_types
    from pycaffe_dist.solvers.solver import Solver

__all__ = ["Solver", "method_class", "method_types"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: an engine without a solver needs no kernels."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from pycaffe_dist.solvers import method, solver

    return getattr(solver if name == "Solver" else method, name)
