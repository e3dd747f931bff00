"""pcaffe trains Caffe's nets on one machine or many; its Python API is shaped like pycaffe's.

``import pycaffe_dist as caffe`` costs nothing until a name below is used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_API = (
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Net",
    "NesterovSolver",
    "RMSPropSolver",
    "SGDSolver",
    "get_solver",
    "layer_type_list",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_random_seed",
    "solver_type_list",
)

__all__ = ["__version__", *_API]


def __getattr__(name: str) -> Any:
    if name in _API:
        value = getattr(importlib.import_module("pycaffe_dist.pycaffe"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_API])
