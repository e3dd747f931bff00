"""Solvers: the training loop and the methods that update parameters, one file per method."""

from pycaffe_dist.solvers.method import method_class, method_types
from pycaffe_dist.solvers.solver import Solver

__all__ = ["Solver", "method_class", "method_types"]
