"""Maps coordinates of one blob to another's, and makes crops that align them, as for FCNs.

A map is (axis, scale, shift): along ``axis`` and the axes after it, an input coordinate ``x`` is at
``scale * x + shift`` of the output.  (None, 1, 0) is the identity, along any axis.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.errors import UsageError
from pycaffe_dist.net_spec import Function, Top
from pycaffe_dist.net_spec import layers as L

Map = tuple[int | None, Any, Any]

PASS_THROUGH_LAYERS = [
    "AbsVal",
    "BatchNorm",
    "Bias",
    "BNLL",
    "Dropout",
    "Eltwise",
    "ELU",
    "Log",
    "LRN",
    "Exp",
    "MVN",
    "Power",
    "ReLU",
    "PReLU",
    "Scale",
    "Sigmoid",
    "Split",
    "TanH",
    "Threshold",
]
_LEGACY = {"pad_h", "pad_w", "kernel_h", "kernel_w", "stride_h", "stride_w"}
_IDENTITY: Map = (None, 1, 0)


class UndefinedMapException(UsageError):
    """A layer has no coordinate map."""


class AxisMismatchException(UsageError):
    """Two maps have different axes."""


class CropError(UsageError, AssertionError):
    """A blob cannot be cropped to another; an AssertionError, as in pycaffe."""


class NotConnectedError(UsageError):
    """Two tops have no blob in common from which spatial layers lead to both."""


def conv_params(fn: Function) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Return (axis, stride, extent of the dilated kernel, pad) of a convolution or pooling layer.

    Raises CropError without kernel_size, and for parameters given as ``_h`` and ``_w``.
    """
    params = fn.params.get("convolution_param", fn.params)
    legacy = sorted(_LEGACY & (set(fn.params) | set(params)))
    if legacy:
        raise CropError(f"{fn.type_name}: maps need kernel_size, stride and pad, not {legacy[0]}")
    if "kernel_size" not in params:
        raise CropError(f"{fn.type_name}: maps need a kernel_size")
    kernel, dilation, stride, pad = (
        np.array(params.get(name, default), ndmin=1)
        for name, default in (("kernel_size", 1), ("dilation", 1), ("stride", 1), ("pad", 0))
    )
    return params.get("axis", 1), stride, (kernel - 1) * dilation + 1, pad


def crop_params(fn: Function) -> tuple[int, np.ndarray]:
    """Return (axis, offset) of a Crop layer, by default axis 2 and offset 0."""
    params = fn.params.get("crop_param", fn.params)
    return params.get("axis", 2), np.array(params.get("offset", 0), ndmin=1)


def coord_map(fn: Function) -> Map:
    """Return the map from a layer's bottom to its top; raises UndefinedMapException without one."""
    if fn.type_name in ("Convolution", "Pooling", "Im2col"):
        axis, stride, extent, pad = conv_params(fn)
        return axis, 1 / stride, (pad - (extent - 1) / 2) / stride
    if fn.type_name == "Deconvolution":
        axis, stride, extent, pad = conv_params(fn)
        return axis, stride, (extent - 1) / 2 - pad
    if fn.type_name in PASS_THROUGH_LAYERS:
        return _IDENTITY
    if fn.type_name == "Crop":
        axis, offset = crop_params(fn)
        # The layer's axis is the first cropped one; a map's is the last before the coordinates.
        return axis - 1, 1, -offset
    raise UndefinedMapException(f"a {fn.type_name} layer does not map coordinates")


def compose(base_map: Map, next_map: Map) -> Map:
    """Return the map of ``next_map`` followed by ``base_map``.

    Raises AxisMismatchException when they have different axes.
    """
    (axis, scale, shift), (next_axis, next_scale, next_shift) = base_map, next_map
    if axis is None:
        axis = next_axis
    elif next_axis is not None and next_axis != axis:
        raise AxisMismatchException(f"maps of axes {axis} and {next_axis} cannot be combined")
    return axis, scale * next_scale, scale * next_shift + shift


def inverse(coord_map: Map) -> Map:
    """Return the inverse map."""
    axis, scale, shift = coord_map
    return axis, 1 / scale, -shift / scale


def _bottoms(top: Top) -> tuple[Top, ...]:
    """Return the bottoms with the top's coordinates; Crop's second one gives only the size."""
    return top.fn.inputs[:1] if top.fn.type_name == "Crop" else top.fn.inputs


def _maps_upwards(top: Top, until: dict[Top, Map]) -> tuple[dict[Top, Map], Top | None]:
    """Return maps from earlier blobs to ``top``, and the first of these blobs in ``until``."""
    maps: dict[Top, Map] = {top: _IDENTITY}
    frontier = [top]
    while frontier:
        here = frontier.pop()
        if here in until:
            return maps, here
        try:
            for bottom in _bottoms(here):
                maps[bottom] = compose(maps[here], coord_map(here.fn))
                frontier.append(bottom)
        except UndefinedMapException:
            continue
    return maps, None


def coord_map_from_to(top_from: Top, top_to: Top) -> Map:
    """Return the map from the coordinates of one top to another's coordinates.

    Follows both back to a common blob.  Raises UsageError, a RuntimeError as in pycaffe, if there
    is none.
    """
    from_maps, _ = _maps_upwards(top_from, {})
    to_maps, common = _maps_upwards(top_to, from_maps)
    if common is None:
        raise NotConnectedError(
            "found no map between the two tops: spatial layers do not lead to both from one blob"
        )
    return compose(to_maps[common], inverse(from_maps[common]))


def crop(top_from: Top, top_to: Top) -> Top:
    """Return ``top_from`` cropped, by a Crop layer, to the place that ``top_to`` covers.

    Raises CropError when the scales differ, or the offset is negative or not whole.
    """
    axis, scale, shift = coord_map_from_to(top_from, top_to)
    scale, offset = np.asarray(scale), -np.asarray(shift)
    if not (scale == 1).all():
        raise CropError(f"cannot crop: the scales differ by a factor of {scale}")
    if not (offset >= 0).all():
        raise CropError(f"cannot crop: the offset {offset} is negative")
    if not (np.round(offset) == offset).all():
        raise CropError(f"cannot crop: the offset {offset} is not a whole number")
    offsets = np.round(np.atleast_1d(offset)).astype(int).tolist()
    first = 2 if axis is None else axis + 1
    return L.Crop(top_from, top_to, crop_param={"axis": first, "offset": offsets})
