"""Array code on a GPU, for functions too rare to be worth a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def blockwise(function: Callable[..., Any], *arrays: Any) -> None:
    """See `pycaffe_dist.kernels.elementwise.blockwise`; here the whole array is one block."""
    function(*[array.reshape(-1) for array in arrays])


def clear(x: Any) -> None:
    """Set x to 0."""
    x.fill(0)
