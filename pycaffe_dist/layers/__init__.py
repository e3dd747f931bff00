"""Caffe's layers, one file per family; new files are found by scanning the folder.

``L.Convolution(bottom, ...)``, and so on for every type, is a layer of a net specification, as with
pycaffe's ``from caffe import layers as L``; see pycaffe_dist.net_spec.
"""

from collections.abc import Callable as _Callable
from typing import Any as _Any

from pycaffe_dist.layers.base import Arity, Layer, LayerContext, Need, layer_class, layer_types
from pycaffe_dist.layers.base import register as register

__all__ = ["Arity", "Layer", "LayerContext", "Need", "layer_class", "layer_types", "register"]


def __getattr__(name: str) -> _Callable[..., _Any]:
    if not name[:1].isupper():
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from pycaffe_dist import net_spec

    return getattr(net_spec.layers, name)
