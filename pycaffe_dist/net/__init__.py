"""Nets: which layers they keep, how they are connected, and how they run."""

from pycaffe_dist.net.net import Net
from pycaffe_dist.net.parameter import Parameter

__all__ = ["Net", "Parameter"]
