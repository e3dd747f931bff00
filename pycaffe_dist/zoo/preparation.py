"""Prepares image files for a net: size, crops, mean and scale, as the net's own tests do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pycaffe_dist.data.image import read_image
from pycaffe_dist.data.transformer import Transformer
from pycaffe_dist.errors import UsageError
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.schema.binary import blob_to_array, read_blob
from pycaffe_dist.zoo.means import mean_instead
from pycaffe_dist.zoo.models import Model

# Caffe resizes images to 256 for crops of 224 and 227: steps of 8 and of 7.
_STEP, _STEP_OF_CROPS = 8, 7


@dataclass(frozen=True)
class Preparation:
    """How an image becomes inputs: its size, the crops' size, the mean (C, 1, 1) or (C, H, W)."""

    channels: int
    size: tuple[int, int]
    crop: tuple[int, int]
    mean: np.ndarray
    scale: float

    def crops(self, path: str, ten: bool) -> np.ndarray:
        """Return the crops of an image file (n, C, h, w) float32; raises DataError.

        They are the centre or, with ``ten``, the corners, the centre and all of them mirrored.
        """
        image = read_image(path, self.channels == 3, *self.size).astype(np.float32)
        image = (image - self.mean) * np.float32(self.scale)
        height, width = self.crop
        last = np.array(self.size) - self.crop
        places = [last // 2]
        if ten:
            places = [last * corner for corner in np.ndindex(2, 2)] + places
        crops = np.stack([image[:, y : y + height, x : x + width] for y, x in places])
        return np.concatenate([crops, crops[..., ::-1]]) if ten else crops


def prepare(model: Model, mean: str = "", scale: float | None = None) -> Preparation:
    """Return how to prepare images for a model's deploy net; raises UsageError and DataError.

    Mean and scale are those of the TEST data layer of its net for training, or its readme's
    mean_value, unless they are given: ``mean`` as values per channel, separated by commas, or as a
    .binaryproto.
    """
    deploy_net = model.required_deploy_net()
    _, channels, height, width = input_shape(text.read_net(deploy_net), str(deploy_net))
    crop = height, width
    layer, place = _test_layer(model), "flag --mean"
    if layer is None and not mean:
        mean, place = model.facts.get("mean_value", ""), f"{model.folder}/readme.md: mean_value"
    if layer is None and not mean:
        logger.warning("%s has no net with a data layer for tests: no mean and scale", model.folder)
    param = layer.transform_param if layer is not None else caffe_pb2.TransformationParameter()
    values = _given_mean(mean, place) if mean else _own_mean(model, param, channels)
    if values.shape[0] not in (1, channels):
        raise UsageError(f"the mean has {values.shape[0]} channel(s), the net's input {channels}")
    size = values.shape[1:] if values.shape[1] > 1 else _size(layer, crop)
    if size[0] < height or size[1] < width:
        raise UsageError(f"the mean is {size[0]}x{size[1]}, less than the input, {height}x{width}")
    factor = param.scale if scale is None else scale
    return Preparation(channels, (size[0], size[1]), crop, values, factor)


def input_shape(net: caffe_pb2.NetParameter, place: str) -> list[int]:
    """Return the shape (N, C, H, W) of a deploy net's input; raises UsageError."""
    inputs = [layer for layer in net.layer if layer.type == "Input"]
    shapes = [list(shape.dim) for layer in inputs[:1] for shape in layer.input_param.shape[:1]]
    if not shapes or len(shapes[0]) != 4:
        raise UsageError(f"{place} has no input for images: expected an Input layer with 4 dims")
    return shapes[0]


def usual_size(net: caffe_pb2.NetParameter, shape: Sequence[int]) -> tuple[int, int]:
    """Return the size to which images are resized before a crop of ``shape`` (height, width).

    A net that does not crop gets them in this shape itself.
    """
    height, width = shape
    if not any(layer.transform_param.crop_size for layer in net.layer):
        return height, width
    return _before_crop(height), _before_crop(width)


def _before_crop(side: int) -> int:
    return _STEP * round(side / _STEP_OF_CROPS)


def _test_layer(model: Model) -> caffe_pb2.LayerParameter | None:
    """Return the data layer for tests of a model's net for training, if there is one."""
    if model.train_net is None:
        return None
    for layer in text.read_net(model.train_net).layer:
        if not layer.bottom and any(rule.phase == caffe_pb2.TEST for rule in layer.include):
            return layer
    return None


def _size(layer: caffe_pb2.LayerParameter | None, crop: tuple[int, int]) -> tuple[int, int]:
    if layer is None or not layer.transform_param.crop_size:
        return crop
    own = layer.image_data_param.new_height, layer.image_data_param.new_width
    return own if all(own) else (_before_crop(crop[0]), _before_crop(crop[1]))


def _own_mean(model: Model, param: caffe_pb2.TransformationParameter, channels: int) -> np.ndarray:
    """Return the mean of a data layer, (C, 1, 1) or (C, H, W)."""
    copied = caffe_pb2.TransformationParameter()
    copied.CopyFrom(param)
    if param.mean_file and not os.path.exists(param.mean_file):
        copied.ClearField("mean_file")
        copied.mean_value.extend(mean_instead(param.mean_file, f"{model.train_net}"))
    mean, _ = Transformer(copied, caffe_pb2.TEST).affine(channels)
    return mean if mean.ndim == 3 else mean[:, None, None]


def _given_mean(given: str, place: str) -> np.ndarray:
    if os.path.exists(given):
        mean = blob_to_array(read_blob(given))
        return mean.reshape(mean.shape[-3:])
    try:
        return np.array([float(value) for value in given.split(",")], np.float32)[:, None, None]
    except ValueError:
        raise UsageError(
            f"{place} needs a file, or values separated by commas, not '{given}'"
        ) from None
