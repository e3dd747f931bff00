"""The module that pycaffe calls ``pycaffe``: nets, solvers, and settings of the whole process."""

from __future__ import annotations

from pycaffe_dist import log
from pycaffe_dist.api.net import Net
from pycaffe_dist.api.process import (
    Timer,
    has_nccl,
    init_log,
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    set_multiprocess,
    set_random_seed,
    set_solver_count,
    set_solver_rank,
    solver_count,
    solver_rank,
)
from pycaffe_dist.api.solver import (
    NCCL,
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    Solver,
    get_solver,
)
from pycaffe_dist.blob import Blob
from pycaffe_dist.layers import layer_types
from pycaffe_dist.layers.python import PythonLayerBase as Layer
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.solvers import method_types

__all__ = [
    "NCCL",
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Blob",
    "Layer",
    "NesterovSolver",
    "Net",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "Timer",
    "get_solver",
    "has_nccl",
    "init_log",
    "layer_type_list",
    "log",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
    "solver_type_list",
]

TRAIN: int = caffe_pb2.TRAIN
TEST: int = caffe_pb2.TEST


def layer_type_list() -> list[str]:
    """Return the names of all layer types."""
    return layer_types()


def solver_type_list() -> list[str]:
    """Return the names of all solver types."""
    return method_types()
