"""How CPU kernels are compiled: `jit` turns a Python loop into machine code at its first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

# What vectorising sums and fusing multiply-adds needs, and nothing that would let the compiler
# assume that no NaN or infinity occurs.
SAFE_FASTMATH = {"contract", "reassoc", "nsz", "arcp"}


def jit(function: Callable[..., Any] | None = None, *, fast: bool = False) -> Any:
    """Compile ``function`` with Numba: no interpreter lock, cached on disk, IEEE division.

    ``fast=True`` lets the compiler reorder sums and contract multiply-adds; NaN and infinity keep
    their meaning.  Used as ``@jit`` or ``@jit(fast=True)``.
    """
    options = {"nogil": True, "cache": True, "error_model": "numpy"}
    if fast:
        options["fastmath"] = SAFE_FASTMATH

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(**options)(function)
        except RuntimeError:
            # Neither the package's folder nor the user's cache can be written: compile every time.
            return numba.njit(**{**options, "cache": False})(function)

    return decorate if function is None else decorate(function)
