"""Nets without their data: layers that read files are replaced by inputs of the same shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pycaffe_dist.errors import NetError
from pycaffe_dist.net.rules import kept_layers
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.schema.places import Places

# Layers that read files, and the field of their parameters.
_SOURCES = {
    "AnnotatedData": "data_param",
    "Data": "data_param",
    "DenseImageData": "dense_image_data_param",
    "HDF5Data": "hdf5_data_param",
    "ImageData": "image_data_param",
    "ImageLabelmapData": "image_data_param",
    "ImageSegData": "image_data_param",
    "WindowSegData": "image_data_param",
    "VideoData": "video_data_param",
    "WindowData": "window_data_param",
}
_MASKS = ("DenseImageData", "ImageLabelmapData", "ImageSegData", "WindowSegData")
_BOX = 8

Sample = tuple[int, int, int]


@dataclass(frozen=True)
class Shapes:
    """Shapes of tops by their names, for layers in Python that bring data in, among others."""

    tops: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def without_sources(
    param: caffe_pb2.NetParameter,
    shape: Sample | Shapes | None = None,
    places: Places | None = None,
) -> caffe_pb2.NetParameter:
    """Return a net whose data layers are replaced by inputs, so that it needs no data.

    The layers keep their indices.  ``shape`` (C, H, W) of a sample is for layers without
    ``crop_size`` (3 channels) or other fields for it; Python layers without bottoms need the shapes
    of their tops.  Raises NetError, with the layer's place in ``places``, when these are missing.
    """
    net = caffe_pb2.NetParameter()
    net.CopyFrom(param)
    for index in kept_layers(param, log=False):
        layer = net.layer[index]
        if layer.type in _SOURCES or (layer.type == "Python" and not layer.bottom):
            try:
                _replace(layer, shape)
            except NetError as error:
                where = f"{places.layer(index)}: " if places else ""
                raise NetError(f"{where}{error}") from None
    for layer in net.layer:
        for filled in ("convolution_param", "inner_product_param", "embed_param"):
            if layer.HasField(filled):
                getattr(layer, filled).ClearField("weight_filler")
    return net


def _replace(layer: caffe_pb2.LayerParameter, shape: Sample | Shapes | None) -> None:
    tops = list(layer.top)
    if isinstance(shape, Shapes) and all(top in shape.tops for top in tops):
        named = [shape.tops[top] for top in tops]
    else:
        shapes = _shapes(layer, None if isinstance(shape, Shapes) else shape)
        named = [shapes[min(number, len(shapes) - 1)] for number in range(len(tops))]
    kept = caffe_pb2.LayerParameter(
        name=layer.name, type="Input", top=tops, include=layer.include, exclude=layer.exclude
    )
    for dims in named:
        kept.input_param.shape.add(dim=dims)
    layer.CopyFrom(kept)


def _shapes(layer: caffe_pb2.LayerParameter, shape: Sample | None) -> list[tuple[int, ...]]:
    """Return the shapes of a layer's tops; further ones are like the last."""
    if layer.type == "Python":
        wanted = " ".join(f"{top}=DIM,DIM,…" for top in layer.top)
        raise NetError(
            f"layer '{layer.name}' (Python) does not give the shapes of its tops: "
            f"give them as --shape='{wanted}'"
        )
    own = getattr(layer, _SOURCES[layer.type])
    sample = _sample(layer, own, shape)
    batch = max(1, own.batch_size)
    return [(batch, *sample), *_other_tops(layer.type, own, batch, sample)]


def _sample(layer: caffe_pb2.LayerParameter, own: Any, shape: Sample | None) -> Sample:
    """Return the shape of a sample."""
    channels, size = 3, _size(layer, own)
    if layer.type == "VideoData":
        frame = 2 if own.modality == own.FLOW else 1 if own.grayscale else 3
        channels = frame * own.num_segments * own.new_length
    elif "is_color" in own.DESCRIPTOR.fields_by_name and not own.is_color:
        channels = 1
    if shape is not None:
        crop = _crop(layer, own)
        return (shape[0], *(crop or shape[1:]))
    if size is None:
        raise NetError(
            f"layer '{layer.name}' ({layer.type}) does not give the shape of a sample: "
            "give it as --shape=CHANNELS,HEIGHT,WIDTH"
        )
    return (channels, *size)


def _crop(layer: caffe_pb2.LayerParameter, own: Any) -> tuple[int, int] | None:
    """Return a crop's size (height, width)."""
    transform = layer.transform_param
    if transform.crop_size:
        return transform.crop_size, transform.crop_size
    others = own if layer.type == "DenseImageData" else transform
    sides = transform.crop_h or others.crop_height, transform.crop_w or others.crop_width
    return sides if all(sides) else None


def _size(layer: caffe_pb2.LayerParameter, own: Any) -> tuple[int, int] | None:
    """Return a sample's height and width, if the layer says them."""
    resize, crop = layer.transform_param.resize_param, _crop(layer, own)
    if crop is not None:
        return crop
    if resize.height and resize.width:
        return resize.height, resize.width
    if "new_height" in own.DESCRIPTOR.fields_by_name and own.new_height and own.new_width:
        return own.new_height, own.new_width
    return None


def _other_tops(type: str, own: Any, batch: int, sample: Sample) -> list[tuple[int, ...]]:
    """Return the shapes of the tops after the first; further ones are like the last."""
    if type == "AnnotatedData":
        return [(1, 1, 1, _BOX)]
    if type in _MASKS:
        divisor = max(1, own.label_divide_factor) if type == "DenseImageData" else 1
        return [(batch, 1, sample[1] // divisor, sample[2] // divisor), (batch, 1, 1, 2)]
    return [(batch, 1, 1, 1) if type == "VideoData" else (batch,)]


def data_shape(text: str) -> Sample | Shapes | None:
    """Return ``CHANNELS,HEIGHT,WIDTH`` or ``TOP=DIM,DIM,… TOP=…`` as shapes; raises NetError.

    An empty text gives None.
    """
    if not text:
        return None
    if "=" in text:
        items = (item.partition("=") for item in text.split())
        return Shapes({name: _numbers(dims, text) for name, _, dims in items})
    sample = _numbers(text, text)
    if len(sample) != 3:
        raise NetError(f"a sample's shape is CHANNELS,HEIGHT,WIDTH, found '{text}'")
    channels, height, width = sample
    return channels, height, width


def _numbers(dims: str, text: str) -> tuple[int, ...]:
    parts = dims.replace("x", ",").split(",")
    if not all(part.strip().isdigit() and int(part) for part in parts):
        raise NetError(
            "shapes are CHANNELS,HEIGHT,WIDTH or TOP=DIM,DIM,… with numbers above 0, "
            f"found '{text}'"
        )
    return tuple(map(int, parts))
