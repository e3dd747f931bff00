"""Proposal and BoxOutput in ONNX: the best boxes that a map predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pycaffe_dist.exporting.onnx.graph import Graph
from pycaffe_dist.exporting.onnx.register import converts
from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.layers.box_output import NO_BOX, BoxOutput
from pycaffe_dist.layers.box_regression import mean_and_std
from pycaffe_dist.layers.proposal import Proposal

_LEAST = float(np.finfo(np.float32).min)


@converts("Proposal")
def proposal(step: Step, graph: Graph) -> None:
    """Anchors that move, are clipped to their image, and are chosen by NonMaxSuppression."""
    layer, param = step.layer, step.layer.param.proposal_param
    assert isinstance(layer, Proposal)
    _require_float32(step, graph)
    scores, moves, images = step.bottoms
    count, stride = len(layer.anchors), float(param.feat_stride)
    images = graph.op("Reshape", images, [0, -1])
    low, length = layer.anchors[:, :2], layer.anchors[:, 2:] - layer.anchors[:, :2] + 1
    corner = graph.op("Add", _cells(graph, scores, stride), low)  # (H, W, A, 2)
    numbers = graph.op("Transpose", _parts(graph, moves, count, 4), perm=[0, 3, 4, 1, 2])
    shift, growth = graph.ops(
        "Split", numbers, to=[graph.new(), graph.new()], axis=-1, num_outputs=2
    )
    centre = graph.op("Add", corner, 0.5 * length)
    centre = graph.op("Add", centre, graph.op("Mul", shift, length))
    half = graph.op("Mul", graph.op("Mul", graph.op("Exp", growth), length), 0.5)
    # Of each image: width and height, and their scales.
    sizes = _of_images(graph, graph.op("Gather", images, [1, 0], axis=1))
    last = graph.op("Sub", sizes, 1.0)
    corners = [
        graph.op("Max", graph.op("Min", graph.op(kind, centre, half), last), 0.0)
        for kind in ("Sub", "Add")
    ]
    scales = _of_images(graph, graph.op("Gather", images, [-1, 2], axis=1))
    least = graph.op("Mul", scales, float(param.min_size))
    wide = graph.op("Add", graph.op("Sub", corners[1], corners[0]), 1.0)
    fits = graph.cast(graph.op("GreaterOrEqual", wide, least), float)
    chances = graph.op("Transpose", _parts(graph, scores, 2, count), perm=[0, 3, 4, 1, 2])
    chances = graph.op("Gather", chances, 1, axis=3)  # (N, H, W, A)
    chances = graph.op("Mul", chances, graph.op("ReduceMin", fits, [-1], keepdims=0))
    boxes = graph.op("Reshape", graph.op("Concat", *corners, axis=-1), [0, -1, 4])
    chances = graph.op("Reshape", chances, [0, -1])
    edges = graph.op("Add", boxes, np.array([0, 0, 1, 1], np.float32))
    limits = param.pre_nms_topn, param.post_nms_topn, param.nms_thresh
    image, place = _best(graph, edges, chances, *limits)
    where = graph.op("Concat", image, place, axis=1)
    rows = [graph.cast(image, float), graph.op("GatherND", boxes, where)]
    graph.op("Concat", *rows, axis=1, to=step.tops[0])
    for top in step.tops[1:]:
        graph.op("GatherND", chances, where, to=top)


@converts("BoxOutput")
def box_output(step: Step, graph: Graph) -> None:
    """Fields that move, are cut at the image's borders, and are chosen by NonMaxSuppression."""
    layer = step.layer
    assert isinstance(layer, BoxOutput)
    _require_float32(step, graph)
    options, maps = layer.options, []
    for x, *field, stride in zip(
        step.bottoms, options.field_w, options.field_h, options.downsample_rate
    ):
        maps.append(_fields(step, graph, x, np.array(field, np.float32), float(stride)))
    edges, scores = (graph.op("Concat", *each, axis=1) for each in zip(*maps))
    low, high = graph.ops("Split", edges, to=[graph.new(), graph.new()], axis=-1, num_outputs=2)
    sides = graph.op("ReduceMin", graph.op("Sub", high, low), [-1], keepdims=0)
    stays = graph.op(
        "And",
        graph.op("GreaterOrEqual", scores, options.fg_thr),
        graph.op("GreaterOrEqual", sides, options.min_size),
    )
    scores = graph.op("Where", stays, scores, _LEAST)
    most = options.max_nms_num or np.iinfo(np.int32).max
    room = options.max_post_nms_num or np.iinfo(np.int32).max
    image, place = _best(graph, edges, scores, most, room, options.iou_thr, _LEAST)
    where = graph.op("Concat", image, place, axis=1)
    chosen = graph.op("GatherND", edges, where), graph.op("GatherND", scores, where)
    rows = [graph.cast(image, float), chosen[0], graph.op("Unsqueeze", chosen[1], [1])]
    for top, columns, without in zip(step.tops, (2, 3), (NO_BOX, (0,) * 6)):
        joined = graph.op("Concat", *rows[:columns], axis=1)
        none = graph.cast(graph.op("Equal", graph.sizes(joined, 0, 1), [0]), np.int64)
        shape = graph.op("Concat", none, [len(without)], axis=0)
        row = graph.op("Expand", np.array([without], np.float32), shape)
        both = graph.op("Concat", joined, row, axis=0)
        graph.op("Reshape", both, [-1, len(without), 1, 1], to=top)


def _fields(step: Step, graph: Graph, x: str, field: np.ndarray, stride: float) -> tuple[str, str]:
    """Return the boxes (N, cells, 4) of a map and their scores (N, cells)."""
    param = step.layer.param.box_output_param
    mean, std = mean_and_std(step.layer)
    last = graph.op("Transpose", x, perm=[0, 2, 3, 1])  # (N, H, W, classes + 4)
    end = [np.iinfo(np.int64).max]
    moves = graph.op("Slice", last, [-4], end, [3])
    moves = graph.op("Add", graph.op("Mul", moves, std), mean)
    shift, growth = graph.ops("Split", moves, to=[graph.new(), graph.new()], axis=3, num_outputs=2)
    most, factor = 1 / param.field_xyr, float(np.log(np.float32(param.field_whr)))
    shift = graph.op("Mul", _clipped(graph, shift, most), field)
    cells = graph.op("Squeeze", _cells(graph, x, stride, 0.5), [2])
    centre = graph.op("Add", shift, cells)
    size = graph.op("Mul", graph.op("Exp", _clipped(graph, growth, factor)), field)
    low = graph.op("Max", graph.op("Sub", centre, graph.op("Mul", size, 0.5)), 0.0)
    sides = graph.op("Gather", graph.sizes(x, 0), [3, 2])
    limit = graph.op("Mul", graph.cast(sides, float), stride)
    high = graph.op("Add", low, graph.op("Min", size, graph.op("Sub", limit, low)))
    classes = graph.op("Slice", last, [1], [-4], [3])
    nothing = graph.op("Slice", last, [0], [1], [3])
    score = graph.op("Sub", graph.op("ReduceMax", classes, [3], keepdims=1), nothing)
    boxes = graph.op("Reshape", graph.op("Concat", low, high, axis=3), [0, -1, 4])
    return boxes, graph.op("Reshape", score, [0, -1])


def _require_float32(step: Step, graph: Graph) -> None:
    if graph.dtype != np.float32:
        raise step.error("has numbers of images and corners, for which 16 bits are too few")


def _clipped(graph: Graph, x: str, most: float) -> str:
    return graph.op("Min", graph.op("Max", x, -most), most)


def _parts(graph: Graph, x: str, first: int, second: int) -> str:
    """Split the channels of x (N, C, H, W) in two axes."""
    shape = graph.op("Concat", [0, first, second], graph.sizes(x, 2), axis=0)
    return graph.op("Reshape", x, shape)


def _of_images(graph: Graph, x: str) -> str:
    """Give numbers (N, 2) axes for rows, columns and anchors."""
    return graph.op("Unsqueeze", x, [1, 2, 3])


def _cells(graph: Graph, x: str, stride: float, begin: float = 0.0) -> str:
    """Return x and y (H, W, 1, 2) of each cell of a map, in pixels."""
    numbers = []
    for axis, ones in ((3, [0, 2, 3]), (2, [1, 2, 3])):
        count = graph.op("Squeeze", graph.sizes(x, axis, axis + 1), [0])
        places = graph.cast(graph.op("Range", 0, count, 1), float)
        places = graph.op("Mul", graph.op("Add", places, begin), stride)
        numbers.append(graph.op("Unsqueeze", places, ones))
    zero = graph.op("Mul", graph.op("Add", *numbers), 0.0)
    pair = [graph.op("Add", zero, each) for each in numbers]
    return graph.op("Concat", *pair, axis=3)


def _best(
    graph: Graph,
    edges: str,
    scores: str,
    most: int,
    room: int,
    threshold: float,
    least: float | None = None,
) -> tuple[str, str]:
    """Return images and places (R, 1), int64, of the boxes to keep, by image, the best first.

    ``edges`` are (N, M, 4).  Of each image the ``most`` best scores (N, M), those above ``least``,
    are considered, and ``room`` boxes are kept.
    """
    number = graph.op("Min", graph.sizes(scores, 1, 2), [most])
    scores, places = graph.ops("TopK", scores, number, to=[graph.new(), graph.new()], axis=1)
    index = graph.op("Expand", graph.op("Unsqueeze", places, [2]), [1, 1, 4])
    boxes = graph.op("GatherElements", edges, index, axis=1)
    limits: Sequence[Any] = [[room], [threshold], *([] if least is None else [[least]])]
    kept = graph.op("NonMaxSuppression", boxes, graph.op("Unsqueeze", scores, [1]), *limits)
    # ONNX leaves their order open.
    image, rank = (graph.op("Gather", kept, [column], axis=1) for column in (0, 2))
    keys = graph.op("Add", graph.op("Mul", image, number), rank)
    order = graph.ops(
        "TopK",
        keys,
        graph.sizes(keys, 0, 1),
        to=[graph.new(), graph.new()],
        axis=0,
        largest=0,
    )[0]
    image = graph.op("Div", order, number)
    where = graph.op("Concat", image, graph.op("Mod", order, number), axis=1)
    return image, graph.op("Unsqueeze", graph.op("GatherND", places, where), [1])
