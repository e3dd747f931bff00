"""Copies between numbers of 16 bits and float32 on a GPU.

CuPy's own casts know bfloat16 only with some versions of NumPy.
"""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.precision import is_narrow

_cu = kernels("casting")


def cast(source: Any, target: Any) -> None:
    """Set ``target`` to the values of ``source``: contiguous, of one size; float32 and 16 bits."""
    if is_narrow(source.dtype):
        _cu.widen(source.size, source, target, source.size)
    else:
        _cu.narrow(source.size, source, target, source.size)


def add_to(source: Any, target: Any) -> None:
    """Add ``source`` to ``target``, which is float32 if ``source`` has 16 bits."""
    if is_narrow(source.dtype):
        _cu.add_narrow(source.size, source, target, source.size)
    else:
        target += source
