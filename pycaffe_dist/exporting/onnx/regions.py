"""ROIPooling, PSROIPooling and ROIAlign in ONNX: values of a map in boxes."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.exporting.onnx.graph import Graph
from pycaffe_dist.exporting.onnx.register import converts
from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.layers.roi_pooling import SMALLEST_SIZE


@converts("ROIPooling")
def roi_pooling(step: Step, graph: Graph) -> None:
    """MaxRoiPool, which has Caffe's rules."""
    param = step.layer.param.roi_pooling_param
    boxes = graph.op("Reshape", step.bottoms[1], [-1, 5])
    size = {"pooled_shape": [param.pooled_h, param.pooled_w], "spatial_scale": param.spatial_scale}
    graph.op("MaxRoiPool", step.bottoms[0], boxes, to=step.tops[0], **size)


@converts("PSROIPooling")
def psroi_pooling(step: Step, graph: Graph) -> None:
    """Products of the map with the marks of each bin's rows and columns, over the bin's area."""
    param = step.layer.param.psroi_pooling_param
    size, depth, x = param.group_size, param.output_dim, step.bottoms[0]
    boxes = graph.op("Reshape", step.bottoms[1], [-1, 5])
    sides = graph.sizes(x, 0)
    columns, rows = (
        _bin_marks(graph, boxes, axis, sides, param.spatial_scale, size) for axis in (0, 1)
    )
    numbers = graph.op("Range", 0, graph.op("Squeeze", graph.sizes(x, 0, 1), [0]), 1)
    image = graph.op("Slice", boxes, [0], [1], [1])
    own = graph.cast(graph.op("Equal", graph.cast(image, np.int64), numbers), float)
    rows_of = graph.op("Einsum", own, rows, equation="rn,rph->rnph")
    planes = graph.op(
        "Concat", graph.constant(np.array([0, depth, size, size])), graph.sizes(x, 2), axis=0
    )
    parts = graph.op("Reshape", x, planes)
    sums = graph.op("Einsum", rows_of, columns, parts, equation="rnph,rqw,ndpqhw->rdpq")
    areas = graph.op("Einsum", rows, columns, equation="rph,rqw->rpq")
    least = graph.op("Unsqueeze", graph.op("Max", areas, 1.0), [1])
    graph.op("Div", sums, least, to=step.tops[0])


def _bin_marks(graph: Graph, boxes: str, axis: int, sides: str, scale: float, bins: int) -> str:
    """Return which cells (R, bins, cells) along an axis are in each bin of each box."""
    low, high = (graph.op("Slice", boxes, [axis + k], [axis + k + 1], [1]) for k in (1, 3))
    low, high = _rounded(graph, low), graph.op("Add", _rounded(graph, high), 1.0)
    low, high = graph.op("Mul", low, scale), graph.op("Mul", high, scale)
    room = graph.op("Max", graph.op("Sub", high, low), SMALLEST_SIZE)
    step = graph.op("Div", room, float(bins))
    begin, end = (
        graph.op(kind, graph.op("Add", graph.op("Mul", step, places), low))
        for kind, places in (
            ("Floor", graph.constant(np.arange(bins, dtype=np.float32))),
            ("Ceil", graph.constant(np.arange(1, bins + 1, dtype=np.float32))),
        )
    )
    side = graph.op("Gather", sides, 3 - axis)
    cells = graph.cast(graph.op("Range", 0, side, 1), float)
    after = graph.op("GreaterOrEqual", cells, graph.op("Unsqueeze", begin, [2]))
    before = graph.op("Less", cells, graph.op("Unsqueeze", end, [2]))
    return graph.cast(graph.op("And", after, before), float)


def _rounded(graph: Graph, x: str) -> str:
    """Round halves away from zero, as C does; ONNX's Round takes the even number."""
    size = graph.op("Floor", graph.op("Add", graph.op("Abs", x), 0.5))
    return graph.op("Mul", graph.op("Sign", x), size)


@converts("ROIAlign")
def roi_align(step: Step, graph: Graph) -> None:
    """GridSample of each box's image at the box's points, and 0 outside."""
    param, x = step.layer.param.roi_pooling_param, step.bottoms[0]
    boxes = graph.op("Reshape", step.bottoms[1], [-1, 5])
    images = graph.cast(graph.op("Slice", boxes, [0], [1], [1]), np.int64)
    maps = graph.op("Gather", x, graph.op("Reshape", images, [-1]), axis=0)
    low, high = (graph.op("Slice", boxes, [k], [k + 2], [1]) for k in (1, 3))
    size = graph.op("Add", graph.op("Sub", high, low), 1.0)
    pad = graph.op("Mul", size, param.pad_ratio)
    start, end = (
        graph.op("Sub", graph.op("Mul", graph.op(kind, corner, pad), param.spatial_scale), 0.5)
        for kind, corner in (("Sub", low), ("Add", high))
    )
    size = graph.op("Sub", end, start)
    sides = graph.cast(graph.op("Gather", graph.sizes(x, 0), [3, 2]), float)
    axes = [
        _points(graph, start, size, sides, axis, count)
        for axis, count in ((0, param.pooled_w), (1, param.pooled_h))
    ]
    sized = graph.op("ReduceMin", size, [1], keepdims=1)
    inside = graph.op("Greater", graph.op("Unsqueeze", sized, [2]), 0.0)
    places, seen = zip(*axes)
    grid = _grid(graph, places, seen, (param.pooled_h + 1, param.pooled_w + 1))
    y = graph.op("GridSample", maps, grid, mode="linear", padding_mode="border", align_corners=1)
    visible = graph.op(
        "And", graph.op("Unsqueeze", seen[1], [2]), graph.op("Unsqueeze", seen[0], [1])
    )
    visible = graph.op("Unsqueeze", graph.op("And", visible, inside), [1])
    graph.op("Where", visible, y, 0.0, to=step.tops[0])


def _points(
    graph: Graph, start: str, size: str, sides: str, axis: int, bins: int
) -> tuple[str, str]:
    """Return points (R, bins + 1) along an axis, from -1 to 1, and whether they are on the map."""
    begin, length = (graph.op("Slice", value, [axis], [axis + 1], [1]) for value in (start, size))
    parts = graph.constant(np.arange(bins + 1) / bins)
    point = graph.op("Add", begin, graph.op("Mul", length, parts))
    side = graph.op("Slice", sides, [axis], [axis + 1], [0])
    before = graph.op("Less", point, -0.5)
    after = graph.op("Greater", point, graph.op("Sub", side, 0.5))
    last = graph.op("Sub", side, 1.0)
    clipped = graph.op("Max", graph.op("Min", point, last), 0.0)
    scaled = graph.op("Div", graph.op("Mul", clipped, 2.0), graph.op("Max", last, 1.0))
    return graph.op("Sub", scaled, 1.0), graph.op("Not", graph.op("Or", before, after))


def _grid(graph: Graph, places: tuple, seen: tuple, size: tuple[int, int]) -> str:
    """Return the points (R, rows, columns, 2) of all pairs of x and y."""
    columns = graph.op("Unsqueeze", places[0], [1])
    rows = graph.op("Unsqueeze", places[1], [2])
    zero = graph.op("Mul", graph.op("Add", columns, rows), 0.0)
    pair = [graph.op("Unsqueeze", graph.op("Add", zero, part), [3]) for part in (columns, rows)]
    return graph.op("Concat", *pair, axis=3)
