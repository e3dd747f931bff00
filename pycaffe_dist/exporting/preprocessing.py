"""The mean and scale of a transform_param, for models that shall take plain pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pycaffe_dist.data.transformer import Transformer
from pycaffe_dist.errors import NetError
from pycaffe_dist.exporting.steps import Steps
from pycaffe_dist.net.rules import kept_layers
from pycaffe_dist.schema import caffe_pb2


@dataclass(frozen=True)
class Preprocessing:
    """What happens to pixels of an input: (pixels - mean)·scale.

    ``mean`` is (C, 1, 1) or an image (C, H, W).
    """

    input: str
    mean: np.ndarray
    scale: float

    def apply(self, pixels: np.ndarray) -> np.ndarray:
        """Return pixels (N, C, H, W) as the net wants them."""
        return ((pixels - self.mean) * self.scale).astype(np.float32)


def preprocessing_of(param: caffe_pb2.NetParameter, net: Steps) -> Preprocessing:
    """Return what the data layer of ``param`` does to an input of ``net``; raises NetError.

    The input is the one with the name of the data layer's first top, or the only one.
    """
    found = [param.layer[i] for i in kept_layers(param, log=False)]
    found = [layer for layer in found if layer.HasField("transform_param") and layer.top]
    if not found:
        raise NetError(
            "there is no data layer with a transform_param; name a prototxt that has one: "
            "--preprocess=FILE"
        )
    name = found[0].top[0]
    if name not in net.inputs:
        if len(net.inputs) != 1:
            raise NetError(f"no input is called '{name}'; the inputs are {', '.join(net.inputs)}")
        name = next(iter(net.inputs))
    shape = net.inputs[name]
    if len(shape) != 4:
        raise NetError(f"input '{name}' of shape {shape} has no images")
    return _affine(found[0], name, shape)


def _affine(layer: caffe_pb2.LayerParameter, name: str, shape: tuple[int, ...]) -> Preprocessing:
    mean, scale = Transformer(layer.transform_param, caffe_pb2.TEST).affine(shape[1])
    if mean.ndim == 1:
        return Preprocessing(name, mean.reshape(-1, 1, 1), float(scale))
    # A crop is taken from the centre.
    begins = [(have - want) // 2 for have, want in zip(mean.shape[1:], shape[2:])]
    if mean.shape[0] != shape[1] or min(begins) < 0:
        raise NetError(
            f"mean file {layer.transform_param.mean_file} has an image of {mean.shape}, which "
            f"does not cover input '{name}' of {shape[1:]}"
        )
    top, left = begins
    image = mean[:, top : top + shape[2], left : left + shape[3]]
    return Preprocessing(name, np.ascontiguousarray(image), float(scale))
