"""The GPU sides of the compute primitives, and their tools."""

from __future__ import annotations

from pycaffe_dist.kernels.cuda.source import Kernels, kernels

__all__ = ["Kernels", "kernels"]
