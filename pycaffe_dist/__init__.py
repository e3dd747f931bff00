"""pcaffe trains Caffe's nets on one machine or many; its Python API is shaped like pycaffe's.

``import pycaffe_dist as caffe`` costs nothing until a name below is used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# The module of each name of the API; a name equal to its module's means the module itself.
_HOMES = {
    **dict.fromkeys(
        (
            "NCCL",
            "TEST",
            "TRAIN",
            "AdaDeltaSolver",
            "AdaGradSolver",
            "AdamSolver",
            "Layer",
            "Net",
            "NesterovSolver",
            "RMSPropSolver",
            "SGDSolver",
            "Timer",
            "get_solver",
            "has_nccl",
            "init_log",
            "layer_type_list",
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
        ),
        "pycaffe",
    ),
    **dict.fromkeys(("NetSpec", "params", "to_proto"), "net_spec"),
    **dict.fromkeys(
        (
            *("classifier", "coord_map", "detector", "draw", "io", "layers", "log", "net_spec"),
            *("proto", "show"),
        ),
        "",
    ),
    "Classifier": "classifier",
    "Detector": "detector",
    "export": "exporting",
    "install_as_caffe": "as_caffe",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module = importlib.import_module(f"pycaffe_dist.{_HOMES[name] or name}")
    value = getattr(module, name) if _HOMES[name] else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
