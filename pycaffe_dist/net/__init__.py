"""Nets: selecting their layers, connecting them, running them."""

from pycaffe_dist.net.net import Net
from pycaffe_dist.net.parameter import Parameter

__all__ = ["Net", "Parameter"]
