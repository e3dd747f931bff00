"""Layers of detectors in ONNX: priors, detections, and values of a map in boxes."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.exporting.onnx.graph import Graph
from pycaffe_dist.exporting.onnx.register import converts
from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.kernels.boxes import CENTER_SIZE, CORNER
from pycaffe_dist.layers.prior_box import PriorBox
from pycaffe_dist.layers.roi_pooling import SMALLEST_SIZE

# ONNX Runtime has no MaxRoiPool of newer versions.
_MAX_ROI_POOL_OPSET = 21
_LEAST = float(np.finfo(np.float32).min)


@converts("PriorBox")
def prior_box(step: Step, graph: Graph) -> None:
    """A constant: the boxes for the map's and the image's size."""
    assert isinstance(step.layer, PriorBox)
    values = graph.constant(np.asarray(step.layer.values, np.float32))
    graph.op("Identity", values, to=step.tops[0])


@converts("ROIPooling")
def roi_pooling(step: Step, graph: Graph) -> None:
    """MaxRoiPool, which has Caffe's rules."""
    graph.opset = _MAX_ROI_POOL_OPSET
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
    planes = graph.op("Concat", graph.constant(np.array([0, depth, size, size])), graph.sizes(x, 2), axis=0)
    parts = graph.op("Reshape", x, planes)
    sums = graph.op("Einsum", rows_of, columns, parts, equation="rnph,rqw,ndpqhw->rdpq")
    areas = graph.op("Einsum", rows, columns, equation="rph,rqw->rpq")
    least = graph.op("Unsqueeze", graph.op("Max", areas, 1.0), [1])
    graph.op("Div", sums, least, to=step.tops[0])


def _bin_marks(graph: Graph, boxes: str, axis: int, sides: str, scale: float, bins: int) -> str:
    """Return which cells (R, bins, cells) along an axis are in each bin of each box."""
    low, high = (
        graph.op("Slice", boxes, [axis + k], [axis + k + 1], [1]) for k in (1, 3)
    )
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
    visible = graph.op("And", graph.op("Unsqueeze", seen[1], [2]), graph.op("Unsqueeze", seen[0], [1]))
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


@converts("DetectionOutput")
def detection_output(step: Step, graph: Graph) -> None:
    """The best boxes of each class, NonMaxSuppression, the best of each image, as Caffe's rows."""
    param = step.layer.param.detection_output_param
    if param.nms_param.eta != 1:
        raise step.error("lowers the threshold of suppression with each box (eta)")
    if graph.dtype != np.float32:
        raise step.error("has numbers of images and corners, for which 16 bits are too few")
    found = _Detections(step, graph)
    found.choose()
    rows = found.rows()
    empty = found.rows_without_any(rows)
    joined = graph.op("Concat", rows, empty, axis=0)
    graph.op("Reshape", joined, [1, 1, -1, 7], to=step.tops[0])


class _Detections:
    """The nodes of a DetectionOutput; ``k`` candidates of each class at most."""

    def __init__(self, step: Step, graph: Graph):
        self.graph, self.param = graph, step.layer.param.detection_output_param
        self.location, self.confidence, self.priors = step.bottoms[:3]
        classes, background = self.param.num_classes, self.param.background_label_id
        self.labels = [number for number in range(classes) if number != background]
        self.count = step.bottom_shapes[2][2] // 4
        nms = self.param.nms_param
        given = nms.HasField("top_k") and nms.top_k >= 0
        self.k = min(nms.top_k, self.count) if given else self.count

    def choose(self) -> None:
        """Set ``scores`` (N, C, k), -inf where a box does not stay, and ``boxes`` (N, C, k, 4)."""
        graph, own, number = self.graph, len(self.labels), self.param.num_classes
        scores = graph.op("Reshape", self.confidence, [-1, self.count, number])
        scores = graph.op("Transpose", scores, perm=[0, 2, 1])
        scores = graph.op("Gather", scores, self.labels, axis=1)
        scores, places = graph.ops("TopK", scores, [self.k], to=[graph.new(), graph.new()], axis=2)
        boxes = self._decoded()  # (N, 1 or C, P, 4)
        if self.param.share_location:
            shape = graph.op("Concat", graph.sizes(scores, 0, 2), [self.count, 4], axis=0)
            boxes = graph.op("Expand", boxes, shape)
        else:
            boxes = graph.op("Gather", boxes, self.labels, axis=1)
        index = graph.op("Expand", graph.op("Unsqueeze", places, [3]), [1, 1, 1, 4])
        boxes = graph.op("GatherElements", boxes, index, axis=2)
        flat = graph.op("Reshape", scores, [-1, 1, self.k])
        corners = graph.op("Reshape", boxes, [-1, self.k, 4])
        nms = self.param.nms_param
        least = self.param.HasField("confidence_threshold")
        stay = graph.op(
            "NonMaxSuppression",
            corners,
            flat,
            [self.k],
            [nms.nms_threshold],
            *([self.param.confidence_threshold] if least else []),
        )
        where = graph.op("Gather", stay, [0, 2], axis=1)
        low = graph.op("Expand", _LEAST, graph.op("Shape", graph.op("Squeeze", flat, [1])))
        kept = graph.op("GatherND", graph.op("Squeeze", flat, [1]), where)
        kept = graph.op("ScatterND", low, where, kept)
        self.scores = graph.op("Reshape", kept, [-1, own * self.k])
        self.boxes = graph.op("Reshape", boxes, [-1, own * self.k, 4])
        if self.param.keep_top_k >= 0:
            self._cut(min(self.param.keep_top_k, own * self.k))

    def _cut(self, most: int) -> None:
        """Leave the ``most`` best scores of each image."""
        graph = self.graph
        best, places = graph.ops(
            "TopK", self.scores, [most], to=[graph.new(), graph.new()], axis=1
        )
        low = graph.op("Expand", _LEAST, graph.sizes(self.scores, 0))
        self.scores = graph.op("ScatterElements", low, places, best, axis=1)

    def _decoded(self) -> str:
        """Return the boxes (N, 1 or C, P, 4) that locations mean for the priors."""
        graph, code = self.graph, self.param.code_type
        several = 1 if self.param.share_location else self.param.num_classes
        numbers = graph.op("Reshape", self.location, [-1, self.count, several, 4])
        numbers = graph.op("Transpose", numbers, perm=[0, 2, 1, 3])
        prior, variance = (
            graph.op("Reshape", graph.op("Slice", self.priors, [k], [k + 1], [1]), [self.count, 4])
            for k in (0, 1)
        )
        if not self.param.variance_encoded_in_target:
            numbers = graph.op("Mul", numbers, variance)
        low, high = _halves(graph, prior)
        size = graph.op("Sub", high, low)
        if code == CENTER_SIZE:
            shift, growth = _halves(graph, numbers)
            middle = graph.op("Mul", graph.op("Add", low, high), 0.5)
            center = graph.op("Add", graph.op("Mul", shift, size), middle)
            half = graph.op("Mul", graph.op("Mul", graph.op("Exp", growth), size), 0.5)
            corners = graph.op("Sub", center, half), graph.op("Add", center, half)
            return graph.op("Concat", *corners, axis=-1)
        if code != CORNER:
            numbers = graph.op("Mul", numbers, graph.op("Concat", size, size, axis=-1))
        return graph.op("Add", prior, numbers)

    def rows(self) -> str:
        """Return the rows (K, 7) by image, class and falling score."""
        graph = self.graph
        places = graph.op("NonZero", graph.op("Greater", self.scores, _LEAST))
        where = graph.op("Transpose", places, perm=[1, 0])
        image, rank = graph.ops("Split", where, to=[graph.new(), graph.new()], axis=1, num_outputs=2)
        label = graph.op("Gather", self.labels, graph.op("Div", rank, [self.k]))
        score = graph.op("Unsqueeze", graph.op("GatherND", self.scores, where), [1])
        corners = graph.op("GatherND", self.boxes, where)
        numbers = (graph.cast(value, float) for value in (image, label))
        return graph.op("Concat", *numbers, score, corners, axis=1)

    def rows_without_any(self, rows: str) -> str:
        """Return an image and -1s for each image (N, 7) if there are no rows, else nothing."""
        graph = self.graph
        images = graph.sizes(self.scores, 0, 1)
        none = graph.cast(graph.op("Equal", graph.sizes(rows, 0, 1), [0]), np.int64)
        count = graph.op("Mul", none, images)
        numbers = graph.op("Range", 0, graph.op("Squeeze", count, [0]), 1)
        column = graph.op("Unsqueeze", graph.cast(numbers, float), [1])
        shape = graph.op("Concat", count, [6], axis=0)
        return graph.op("Concat", column, graph.op("Expand", -1.0, shape), axis=1)


def _halves(graph: Graph, boxes: str) -> tuple[str, str]:
    """Return the first and the last two numbers of each box."""
    low, high = graph.ops("Split", boxes, to=[graph.new(), graph.new()], axis=-1, num_outputs=2)
    return low, high
