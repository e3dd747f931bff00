"""Layers in ONNX that copy, cut, join, turn and enlarge arrays."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from pycaffe_dist.exporting.onnx.graph import Graph
from pycaffe_dist.exporting.onnx.register import converts
from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.layers.permutation import Rearranging

_END = np.iinfo(np.int64).max
_BEGIN = np.iinfo(np.int64).min + 1


def _old_axis(step: Step, param: Any, old: str) -> int:
    return step.axis(getattr(param, old) if param.HasField(old) else param.axis)


@converts("Concat")
def concat(step: Step, graph: Graph) -> None:
    """Concat."""
    axis = _old_axis(step, step.layer.param.concat_param, "concat_dim")
    graph.op("Concat", *step.bottoms, to=step.tops[0], axis=axis)


@converts("Slice")
def slice_(step: Step, graph: Graph) -> None:
    """Split at the points; the last part ends where the array does."""
    axis = _old_axis(step, step.layer.param.slice_param, "slice_dim")
    ends = [*itertools.accumulate(shape[axis] for shape in step.top_shapes)]
    for top, begin, end in zip(step.tops, [0, *ends], [*ends[:-1], _END]):
        graph.op("Slice", step.bottoms[0], [begin], [end], [axis], to=top)


@converts("Tile")
def tile(step: Step, graph: Graph) -> None:
    """Tile."""
    param = step.layer.param.tile_param
    repeats = [1] * len(step.bottom_shapes[0])
    repeats[step.axis(param.axis)] = param.tiles
    graph.op("Tile", step.bottoms[0], repeats, to=step.tops[0])


@converts("Crop")
def crop(step: Step, graph: Graph) -> None:
    """A Slice with the sizes of the second bottom."""
    param = step.layer.param.crop_param
    axes = [*range(step.axis(param.axis), len(step.bottom_shapes[0]))]
    offsets = list(param.offset) or [0]
    offsets = offsets * len(axes) if len(offsets) == 1 else offsets
    ends = graph.op("Add", graph.sizes(step.bottoms[1], axes[0]), offsets)
    graph.op("Slice", step.bottoms[0], offsets, ends, axes, to=step.tops[0])


@converts("Flatten")
def flatten(step: Step, graph: Graph) -> None:
    """Reshape that keeps the sizes before, and infers the joined one."""
    param = step.layer.param.flatten_param
    start, axes = step.axis(param.axis), len(step.bottom_shapes[0])
    stop = param.end_axis % axes + 1
    if stop == axes:
        graph.op("Reshape", step.bottoms[0], [0] * start + [-1], to=step.tops[0])
        return
    rest = graph.sizes(step.bottoms[0], stop)
    target = graph.op("Concat", graph.constant(np.array([0] * start + [-1])), rest, axis=0)
    graph.op("Reshape", step.bottoms[0], target, to=step.tops[0])


@converts("Reshape")
def reshape(step: Step, graph: Graph) -> None:
    """Reshape; the sizes that are not given are those of the bottom."""
    param, axes = step.layer.param.reshape_param, len(step.bottom_shapes[0])
    start = param.axis if param.axis >= 0 else axes + param.axis + 1
    stop = axes if param.num_axes == -1 else start + param.num_axes
    target = graph.constant(np.array([0] * start + [*param.shape.dim], np.int64))
    if stop < axes:
        target = graph.op("Concat", target, graph.sizes(step.bottoms[0], stop), axis=0)
    graph.op("Reshape", step.bottoms[0], target, to=step.tops[0])


@converts("Permute", "Transpose")
def permute(step: Step, graph: Graph) -> None:
    """Transpose."""
    graph.op("Transpose", step.bottoms[0], to=step.tops[0], perm=_arrangement(step).order)


def _arrangement(step: Step) -> Any:
    assert isinstance(step.layer, Rearranging)
    return step.layer.made


@converts("ShuffleChannel", "Reorg")
def rearrange(step: Step, graph: Graph) -> None:
    """Transpose of the array in another shape."""
    made = _arrangement(step)
    seen = graph.op("Reshape", step.bottoms[0], [-1, *made.shape[1:]])
    turned = graph.op("Transpose", seen, perm=made.order)
    graph.op("Reshape", turned, [-1, *made.top[1:]], to=step.tops[0])


@converts("Reverse")
def reverse(step: Step, graph: Graph) -> None:
    """A Slice with step -1."""
    _mirror(step, graph, [step.axis(step.layer.param.reverse_param.axis)])


@converts("Flip")
def flip(step: Step, graph: Graph) -> None:
    """Slices with step -1 of height and width."""
    param = step.layer.param.flip_param
    _mirror(step, graph, [2] * param.flip_height + [3] * param.flip_width)


def _mirror(step: Step, graph: Graph, axes: list[int]) -> None:
    if not axes:
        graph.op("Identity", step.bottoms[0], to=step.tops[0])
        return
    count = len(axes)
    limits = [-1] * count, [_BEGIN] * count, axes, [-1] * count
    graph.op("Slice", step.bottoms[0], *limits, to=step.tops[0])


@converts("BatchReindex")
def batch_reindex(step: Step, graph: Graph) -> None:
    """Gather of samples."""
    rows = graph.cast(step.bottoms[1], np.int64)
    graph.op("Gather", step.bottoms[0], rows, to=step.tops[0], axis=0)


@converts("Filter")
def filter_(step: Step, graph: Graph) -> None:
    """Compress by the selector."""
    chosen = graph.cast(graph.op("Reshape", step.bottoms[-1], [-1]), np.bool_)
    for bottom, top in zip(step.bottoms, step.tops):
        graph.op("Compress", bottom, chosen, to=top, axis=0)


@converts("Upsample")
def upsample(step: Step, graph: Graph) -> None:
    """Resize to the nearest pixel, or ScatterElements to the places of a mask."""
    param, x, top = step.layer.param.upsample_param, step.bottoms[0], step.tops[0]
    if len(step.bottoms) == 1:
        scale = param.scale if param.HasField("scale") else 1
        rule = {"mode": "nearest", "nearest_mode": "floor"}
        sizes = graph.op("Mul", graph.sizes(x, 0), [1, 1, scale, scale])
        _resize(graph, x, sizes, top, coordinate_transformation_mode="asymmetric", **rule)
        return
    size = _unpooled_size(step, graph)
    outer = graph.sizes(x, 0, 2)
    plane = graph.op("ReduceProd", size, keepdims=1)
    flat = graph.constant(np.array([0, 0, -1]))
    zeros = graph.op(
        "Expand", graph.constant(np.zeros(1)), graph.op("Concat", outer, plane, axis=0)
    )
    places = graph.op("Reshape", graph.cast(step.bottoms[1], np.int64), flat)
    filled = graph.op("ScatterElements", zeros, places, graph.op("Reshape", x, flat), axis=2)
    graph.op("Reshape", filled, graph.op("Concat", outer, size, axis=0), to=top)


def _unpooled_size(step: Step, graph: Graph) -> str:
    param = step.layer.param.upsample_param
    if param.upsample_h:
        return graph.constant(np.array([param.upsample_h, param.upsample_w]))
    own = param.HasField("scale_h")
    scales = [param.scale_h, param.scale_w] if own else [param.scale] * 2
    scaled = graph.op("Mul", graph.sizes(step.bottoms[0], 2), scales)
    return graph.op("Sub", scaled, [int(param.pad_out_h), int(param.pad_out_w)])


def _resize(graph: Graph, x: str, sizes: str, to: str, **rule: str) -> None:
    graph.op("Resize", x, "", "", sizes, to=to, **rule)


@converts("Interp")
def interp(step: Step, graph: Graph) -> None:
    """Resize between the corners, after a Slice."""
    param, x = step.layer.param.interp_param, step.bottoms[0]
    if param.pad_beg or param.pad_end:
        ends = [param.pad_end or _END] * 2
        x = graph.op("Slice", x, [-param.pad_beg] * 2, ends, [2, 3])
    if param.use_blob_size:
        size = graph.sizes(step.bottoms[1], 2)
    elif param.HasField("shrink_factor") == param.HasField("zoom_factor") and param.height:
        size = graph.constant(np.array([param.height, param.width]))
    else:
        steps = graph.op("Sub", graph.sizes(x, 2), [1, 1])
        steps = graph.op("Div", steps, [param.shrink_factor] * 2)
        size = graph.op("Add", graph.op("Mul", steps, [param.zoom_factor] * 2), [1, 1])
    sizes = graph.op("Concat", graph.sizes(x, 0, 2), size, axis=0)
    _resize(
        graph,
        x,
        sizes,
        step.tops[0],
        mode="linear",
        coordinate_transformation_mode="align_corners",
    )
