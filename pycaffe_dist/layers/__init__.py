"""Caffe's layers, one file per family; a file dropped in here is found by itself."""

from pycaffe_dist.layers.base import Arity, Layer, LayerContext, Need, layer_class, layer_types
from pycaffe_dist.layers.base import register as register

__all__ = ["Arity", "Layer", "LayerContext", "Need", "layer_class", "layer_types", "register"]
