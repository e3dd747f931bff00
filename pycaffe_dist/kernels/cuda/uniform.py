"""Uniform random numbers on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels

_cu = kernels("uniform")


def uniform(out: Any, key: Any) -> None:
    """See `pycaffe_dist.kernels.uniform.uniform`."""
    _cu.uniform(out.size, out, key, out.size)
