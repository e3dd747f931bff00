"""Offsets of V1 CROP layers, which longjon/caffe finds from the layers that lead to both bottoms.

A map is a scale and a shift along height and width: where a point of one blob is in another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from pycaffe_dist.errors import PrototxtError
from pycaffe_dist.schema import caffe_pb2

_Map = tuple[tuple[Fraction, Fraction], ...]
_Layers = Mapping[str, caffe_pb2.LayerParameter]
_IDENTITY: _Map = ((Fraction(1), Fraction(0)),) * 2
# Types whose tops have the points of their bottoms.
_UNMOVED = {
    *("AbsVal", "BNLL", "Concat", "Dropout", "Eltwise", "Exp", "LRN", "MVN", "Power", "ReLU"),
    *("Sigmoid", "Slice", "Softmax", "Split", "TanH", "Threshold"),
}


def align_crops(
    net: caffe_pb2.NetParameter, crops: Sequence[int], fail: Callable[..., PrototxtError]
) -> None:
    """Give the layers at the places ``crops`` their offsets; raises ``fail(message, place)``."""
    makers: dict[str, caffe_pb2.LayerParameter] = {}
    for layer in net.layer:
        for top in layer.top:
            if top not in layer.bottom:
                makers.setdefault(top, layer)
    for place in crops:
        crop = net.layer[place]
        try:
            offsets = _offsets(crop, makers)
        except _NoMap as error:
            raise fail(f"layer '{crop.name}' (CROP) cannot be aligned: {error}", place) from None
        crop.crop_param.axis = 2
        crop.crop_param.offset.extend(offsets)


class _NoMap(Exception):
    """Why there is no map."""


def _offsets(crop: caffe_pb2.LayerParameter, makers: _Layers) -> list[int]:
    if len(crop.bottom) != 2:
        raise _NoMap(f"it needs 2 bottoms, found {len(crop.bottom)}")
    sources = [_sources(blob, makers) for blob in crop.bottom]
    common = next((blob for blob in sources[1] if blob in sources[0]), None)
    if common is None:
        raise _NoMap(f"no blob leads to both '{crop.bottom[0]}' and '{crop.bottom[1]}'")
    first, second = (_map_from(common, blobs, makers) for blobs in sources)
    offsets = []
    for (scale, shift), (wanted, other) in zip(first, second):
        # From a point of the first bottom back to the common blob, and on to the second bottom.
        offset = shift * wanted / scale - other
        if wanted != scale or offset < 0 or offset.denominator != 1:
            raise _NoMap(
                f"from '{crop.bottom[0]}' to '{crop.bottom[1]}' the scale is {wanted / scale} and "
                f"the offset {offset}; they must be 1 and a whole number from 0"
            )
        offsets.append(int(offset))
    return offsets


def _sources(blob: str, makers: _Layers) -> list[str]:
    """Return a blob, the first bottom of the layer that makes it, and so on."""
    found = [blob]
    while found[-1] in makers and makers[found[-1]].bottom:
        found.append(makers[found[-1]].bottom[0])
    return found


def _map_from(common: str, blobs: Sequence[str], makers: _Layers) -> _Map:
    """Return the map from ``common``, one of the sources ``blobs``, to the first of these."""
    total = _IDENTITY
    for blob in blobs[: blobs.index(common)]:
        steps = zip(total, _map_of(makers[blob]))
        total = tuple((a * scale, a * shift + b) for (a, b), (scale, shift) in steps)
    return total


def _map_of(layer: caffe_pb2.LayerParameter) -> _Map:
    """Return the map from a layer's first bottom to its top."""
    if layer.type in _UNMOVED:
        return _IDENTITY
    if layer.type == "Crop":
        offsets = [*layer.crop_param.offset, *layer.crop_param.offset][:2]
        return tuple((Fraction(1), Fraction(-offset)) for offset in offsets)
    if layer.type == "Pooling" and not layer.pooling_param.global_pooling:
        return _windows(layer.pooling_param, moves=True)
    if layer.type in ("Convolution", "Deconvolution"):
        return _windows(layer.convolution_param, moves=layer.type == "Convolution")
    raise _NoMap(f"layer '{layer.name}' of type '{layer.type}' moves points in an unknown way")


def _windows(param: Any, moves: bool) -> _Map:
    """Return the map from windows' pixels to the windows, or with ``moves`` false back."""
    sides = []
    for side, name in enumerate("hw"):
        kernel, stride, pad, dilation = (
            _number(param, field, side, name, default)
            for field, default in (("kernel", 0), ("stride", 1), ("pad", 0), ("dilation", 1))
        )
        if not kernel or not stride:
            raise _NoMap("a layer has no kernel_size or a stride of 0")
        first = Fraction((kernel - 1) * dilation, 2) - pad
        scale = Fraction(stride)
        sides.append((1 / scale, -first / scale) if moves else (scale, first))
    return tuple(sides)


def _number(param: Any, field: str, side: int, name: str, default: int) -> int:
    """Return a number for height or width: FIELD_h or FIELD_w, else the field itself."""
    if field != "dilation" and param.HasField(f"{field}_{name}"):
        return int(getattr(param, f"{field}_{name}"))
    value = getattr(param, "kernel_size" if field == "kernel" else field, default)
    if isinstance(value, int):
        return value
    return int(value[min(side, len(value) - 1)]) if value else default
