"""A table of a net's layers: shapes, parameters, multiplications, memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pycaffe_dist.errors import NetError
from pycaffe_dist.layers import Layer
from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import filter_layers, kept_layers
from pycaffe_dist.schema import caffe_pb2

# Layers that read files, and the field of their parameters.
_SOURCES = {
    "Data": "data_param",
    "ImageData": "image_data_param",
    "WindowData": "window_data_param",
    "HDF5Data": "hdf5_data_param",
}


@dataclass(frozen=True)
class LayerSummary:
    """A layer's row: its tops' shapes, and its size and work for one batch.

    ``parameters`` counts values that the layer owns, not values shared with an earlier layer;
    ``macs`` multiply-accumulate operations in forward; ``bytes`` the memory of its tops.
    """

    name: str
    type: str
    shapes: tuple[tuple[int, ...], ...]
    parameters: int
    learned: int
    macs: int
    bytes: int


def without_sources(
    param: caffe_pb2.NetParameter, shape: tuple[int, int, int] | None = None
) -> caffe_pb2.NetParameter:
    """Return a net whose data layers are replaced by inputs, so that it needs no data.

    ``shape`` (C, H, W) of a sample is for layers without ``crop_size`` (3 channels) or other fields
    for it.  Raises NetError when it is needed and not given.
    """
    net = filter_layers(param, kept_layers(param))
    for layer in net.layer:
        if layer.type in _SOURCES:
            _replace(layer, shape)
        for filled in ("convolution_param", "inner_product_param", "embed_param"):
            if layer.HasField(filled):
                getattr(layer, filled).ClearField("weight_filler")
    return net


def _replace(layer: caffe_pb2.LayerParameter, shape: tuple[int, int, int] | None) -> None:
    fields, transform = getattr(layer, _SOURCES[layer.type]), layer.transform_param
    crop, image = transform.crop_size, layer.image_data_param
    if shape is not None:
        height, width = (crop, crop) if crop else shape[1:]
        sample = (shape[0], height, width)
    elif crop:
        sample = (3, crop, crop)
    elif image.new_height and image.new_width:
        sample = (3 if image.is_color else 1, image.new_height, image.new_width)
    else:
        raise NetError(
            f"layer '{layer.name}' ({layer.type}) does not give the shape of a sample: "
            "give it as --shape=CHANNELS,HEIGHT,WIDTH"
        )
    batch = max(1, fields.batch_size)
    tops = list(layer.top)
    kept = caffe_pb2.LayerParameter(name=layer.name, type="Input", top=tops)
    for number in range(len(tops)):
        kept.input_param.shape.add(dim=(batch, *sample) if not number else (batch,))
    layer.CopyFrom(kept)


def summarize(net: Net) -> list[LayerSummary]:
    """Return a row for every layer of a net, except splits."""
    owners = {id(p.blob): p for p in net.parameters}
    seen: set[int] = set()
    rows = []
    for node in net.nodes:
        layer = node.layer
        own = [blob for blob in layer.blobs if id(blob) in owners and id(blob) not in seen]
        seen |= {id(blob) for blob in own}
        if layer.type == "Split":
            continue
        statistics = {id(blob) for blob in layer.statistics_blobs()}
        rows.append(
            LayerSummary(
                node.name,
                layer.type,
                tuple(blob.shape for blob in node.top),
                sum(blob.count for blob in own),
                sum(blob.count for blob in own if id(blob) not in statistics),
                _macs(layer, node.bottom, node.top),
                sum(blob.count * blob.dtype.itemsize for blob in node.top)
                if not set(map(id, node.top)) & set(map(id, node.bottom))
                else 0,
            )
        )
    return rows


def _macs(layer: Layer, bottom: list[Any], top: list[Any]) -> int:
    """Return a layer's multiply-accumulate operations, 0 for types with few of them."""
    if layer.type == "Convolution":
        return sum(blob.count for blob in top) * math.prod(layer.blobs[0].shape[1:])
    if layer.type == "Deconvolution":
        return sum(blob.count for blob in bottom) * math.prod(layer.blobs[0].shape[1:])
    if layer.type == "InnerProduct":
        outputs, inputs = layer.param.inner_product_param.num_output, layer.blobs[0].count
        return top[0].count // outputs * inputs
    return 0


def table(rows: list[LayerSummary]) -> str:
    """Return the rows as text, with totals."""
    head = ["layer", "type", "tops", "parameters", "MACs", "memory"]
    cells = [
        [
            row.name,
            row.type,
            " ".join("x".join(map(str, shape)) or "1" for shape in row.shapes),
            f"{row.parameters:,}" if row.parameters else "",
            _short(row.macs) if row.macs else "",
            _size(row.bytes) if row.bytes else "",
        ]
        for row in rows
    ]
    total = [
        "total",
        f"{len(rows)} layers",
        "",
        f"{sum(row.parameters for row in rows):,}",
        _short(sum(row.macs for row in rows)),
        _size(sum(row.bytes for row in rows)),
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, total)]
    line = "  ".join("-" * width for width in widths)
    return "\n".join([_line(head, widths), line, *(_line(c, widths) for c in cells), line,
                      _line(total, widths)])  # fmt: skip


def _line(cells: list[str], widths: list[int]) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells[:3], widths)]
    right = [cell.rjust(width) for cell, width in zip(cells[3:], widths[3:])]
    return "  ".join(left + right).rstrip()


def _short(count: float) -> str:
    for unit in ("", "k", "M", "G"):
        if count < 1000:
            return f"{count:.4g}{unit}"
        count /= 1000
    return f"{count:.4g}T"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def data_shape(text: str) -> tuple[int, int, int] | None:
    """Return ``CHANNELS,HEIGHT,WIDTH`` as numbers, None for an empty text; raises NetError."""
    if not text:
        return None
    parts = text.replace("x", ",").split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() and int(part) for part in parts):
        raise NetError(f"a sample's shape is CHANNELS,HEIGHT,WIDTH, found '{text}'")
    channels, height, width = map(int, parts)
    return channels, height, width
