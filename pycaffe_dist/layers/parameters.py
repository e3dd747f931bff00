"""Creates a layer's parameter blobs with the fillers of its prototxt."""

from __future__ import annotations

from typing import Any

from pycaffe_dist import device
from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import NetError
from pycaffe_dist.layers.base import Layer
from pycaffe_dist.layers.filler import fill
from pycaffe_dist.schema import caffe_pb2

FillerParameter = Any  # caffe_pb2.FillerParameter, a class made at run time
Spec = tuple[tuple[int, ...], FillerParameter]


def constant(value: float) -> FillerParameter:
    """Return the filler that sets all elements to ``value``."""
    return caffe_pb2.FillerParameter(type="constant", value=value)


def make_parameters(layer: Layer, *specs: Spec) -> None:
    """Create ``layer.blobs`` with the given shapes and fillers, or check existing blobs.

    Raises LayerError when given blobs do not fit, or a filler cannot fill its blob.
    """
    shapes = [shape for shape, _ in specs]
    if layer.blobs:
        found = [blob.shape for blob in layer.blobs]
        if found != shapes:
            raise layer.error(f"needs parameters of shapes {shapes}, found {found}")
        return
    for index, (shape, filler) in enumerate(specs):
        if 0 in shape:
            raise layer.error(f"parameter {index} would have the shape {shape} and no elements")
        blob = Blob(shape, layer.context.parameter_dtype)
        try:
            with device.use(device.HOST):  # the same numbers on every device
                fill(blob, filler, layer.context.rng(layer.name, f"blobs[{index}]"))
        except NetError as error:
            raise layer.error(f"parameter {index}: {error}") from None
        layer.blobs.append(blob)
