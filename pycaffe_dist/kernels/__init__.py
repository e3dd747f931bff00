"""Compute primitives, one file per family; `kernel` sends a call to the device of its arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from pycaffe_dist.errors import DeviceError

Function = TypeVar("Function", bound=Callable)


def kernel(function: Function) -> Function:
    """Mark ``function`` as the CPU side of a primitive.

    The first array argument decides: NumPy runs ``function``; raises `DeviceError` for an array of
    a device that has no implementation of this primitive.
    """
    name = f"{function.__module__.removeprefix('pycaffe_dist.')}.{function.__qualname__}"

    @functools.wraps(function)
    def launch(*args, **options):
        for arg in args:
            if isinstance(arg, np.ndarray):
                break
            if hasattr(arg, "__cuda_array_interface__"):
                raise DeviceError(f"{name} has no implementation for {type(arg).__name__} arrays")
        return function(*args, **options)

    return launch
