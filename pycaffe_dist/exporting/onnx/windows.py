"""Pooling and local response normalization in ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.exporting.onnx.graph import Graph
from pycaffe_dist.exporting.onnx.register import converts
from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.kernels.pooling import PoolingGeometry
from pycaffe_dist.layers.pooling import AVE, MAX, Pooling, bins_of
from pycaffe_dist.schema import caffe_pb2

# What Caffe adds to a window's sum before it divides by it.
_TINY = 1.2e-38


def _pool(
    step: Step,
    graph: Graph,
    method: int,
    geometry: PoolingGeometry,
    x: str,
    to: str | None = None,
    mask: str = "",
) -> str:
    """Add the nodes of a pooling; return the name of the result."""
    size = _image(step)
    window: dict[str, Any] = {
        "kernel_shape": geometry.kernel,
        "strides": geometry.stride,
        "pads": geometry.pad * 2,
        "ceil_mode": int(geometry.ceil),
    }
    for out, side, stride, pad in zip(
        geometry.output_shape(size), size, geometry.stride, geometry.pad
    ):
        if (out - 1) * stride >= side + pad:
            raise step.error(f"has windows that begin after the image's end, at size {side}")
    if method == MAX:
        if not mask:
            return graph.op("MaxPool", x, to=to, **window)
        y, places = graph.ops("MaxPool", x, to=[to or graph.new(), graph.new()], **window)
        _mask(graph, x, places, mask)
        return y
    # Caffe divides by the window's area with padding, but not by what lies beyond it.
    window["count_include_pad"] = int(any(geometry.pad))
    if method == AVE:
        return graph.op("AveragePool", x, to=to, **window)
    squares = graph.op("AveragePool", graph.op("Mul", x, x), **window)
    sums = graph.op("Add", graph.op("AveragePool", x, **window), _TINY)
    return graph.op("Div", squares, sums, to=to)


def _image(step: Step) -> tuple[int, int]:
    height, width = step.bottom_shapes[0][2:]
    return height, width


def _mask(graph: Graph, x: str, places: str, mask: str) -> None:
    """Turn places in the whole array into places in its planes, as numbers of 32 bits."""
    plane = graph.op("ReduceProd", graph.sizes(x, 2), keepdims=0)
    graph.cast(graph.op("Mod", places, plane), np.float32, to=mask)


@converts("Pooling")
def pooling(step: Step, graph: Graph) -> None:
    """A pooling whose windows are cut off at the borders, by Caffe's rules."""
    layer, param = step.layer, step.layer.param.pooling_param
    assert isinstance(layer, Pooling)
    mask = step.tops[1] if len(step.tops) > 1 else ""
    if param.global_pooling and param.pool in (MAX, AVE) and not mask:
        kind = "GlobalMaxPool" if param.pool == MAX else "GlobalAveragePool"
        graph.op(kind, step.bottoms[0], to=step.tops[0])
        return
    geometry = layer.geometry_for(_image(step))
    _pool(step, graph, param.pool, geometry, step.bottoms[0], step.tops[0], mask)


@converts("SPP")
def spp(step: Step, graph: Graph) -> None:
    """A pooling for each level, joined."""
    param = step.layer.param.spp_param
    levels = []
    for level in range(param.pyramid_height):
        geometry = bins_of(_image(step), 2**level)
        y = _pool(step, graph, param.pool, geometry, step.bottoms[0])
        levels.append(y if param.pyramid_height == 1 else graph.op("Flatten", y, axis=1))
    if len(levels) == 1:
        graph.op("Identity", *levels, to=step.tops[0])
    else:
        graph.op("Concat", *levels, to=step.tops[0], axis=1)


@converts("LRN")
def lrn(step: Step, graph: Graph) -> None:
    """LRN over channels; within one, an average of squares."""
    param, x = step.layer.param.lrn_param, step.bottoms[0]
    size = param.local_size
    if param.norm_region == caffe_pb2.LRNParameter.ACROSS_CHANNELS:
        rule = {"size": size, "alpha": param.alpha, "beta": param.beta, "bias": param.k}
        graph.op("LRN", x, to=step.tops[0], **rule)
        return
    mean = graph.op(
        "AveragePool",
        graph.op("Mul", x, x),
        kernel_shape=[size, size],
        pads=[size // 2] * 4,
        count_include_pad=1,
    )
    scale = graph.op("Add", graph.op("Mul", mean, param.alpha), 1.0)
    graph.op("Mul", x, graph.op("Pow", scale, -param.beta), to=step.tops[0])
