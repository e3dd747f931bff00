"""Small nets for the tests of this folder, built from text."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.schema import caffe_pb2, text


def parse(prototxt: str):
    """Return a NetParameter."""
    return text.parse(prototxt, caffe_pb2.NetParameter())


def build(prototxt: str, phase: int = caffe_pb2.TRAIN, **options) -> Net:
    """Build a net in a phase, in float64 and with a fixed seed unless told otherwise."""
    options = {"dtype": np.float64, "seed": 1, **options}
    return Net(with_state(parse(prototxt), phase), **options)


def input_layer(name: str, *shape: int) -> str:
    """Return the prototxt of an Input layer."""
    dims = " ".join(f"dim: {dim}" for dim in shape)
    shape_field = f"input_param {{ shape {{ {dims} }} }}"
    return f"layer {{ name: '{name}' type: 'Input' top: '{name}' {shape_field} }}"


def ip(name: str, bottom: str, outputs: int, extra: str = "") -> str:
    """Return the prototxt of an InnerProduct layer with a Gaussian filler."""
    return (
        f"layer {{ name: '{name}' type: 'InnerProduct' bottom: '{bottom}' top: '{name}' {extra} "
        f"inner_product_param {{ num_output: {outputs} weight_filler {{ type: 'gaussian' std: 1 }} "
        "bias_filler { type: 'gaussian' std: 1 } } }"
    )
