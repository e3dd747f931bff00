"""Compute primitives, one file per family; `kernel` and `plan` pair the CPU's with the GPU's.

The GPU side of ``kernels/<family>.py`` is ``kernels/cuda/<family>.py``, with functions and classes
of the same names and parameters; its kernels are in ``kernels/<family>.cu``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.device import is_on_gpu
from pycaffe_dist.errors import DeviceError

Function = TypeVar("Function", bound=Callable)
Class = TypeVar("Class", bound=type)


def kernel(function: Function) -> Function:
    """Mark ``function`` as the CPU side of a primitive.

    The first array argument decides: with a NumPy array ``function`` runs, with a GPU array its
    partner.  Raises `DeviceError` when there is no partner.
    """

    @functools.wraps(function)
    def launch(*args, **options):
        for arg in args:
            if isinstance(arg, np.ndarray):
                break
            if is_on_gpu(arg):
                return partner(function)(*args, **options)
        return function(*args, **options)

    launch.is_primitive = True  # type: ignore[attr-defined]
    return launch


def plan(cls: Class) -> Class:
    """Mark ``cls`` as the CPU side of a plan: on a GPU its partner class is made.

    Raises `DeviceError` when there is none.
    """

    def make(made: type, *args: Any, **options: Any) -> Any:
        if made is cls and device.current().is_gpu:
            return partner(cls)(*args, **options)
        return object.__new__(made)

    cls.__new__ = make
    cls.is_primitive = True
    return cls


@functools.cache
def partner(primitive: Any) -> Any:
    """Return the GPU side of a primitive; raises DeviceError when there is none."""
    family = primitive.__module__.rpartition(".")[2]
    name = f"pycaffe_dist.kernels.cuda.{family}"
    try:
        return getattr(importlib.import_module(name), primitive.__qualname__)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
    except AttributeError:
        pass
    raise DeviceError(f"kernels.{family}.{primitive.__qualname__} has no implementation for GPUs")
