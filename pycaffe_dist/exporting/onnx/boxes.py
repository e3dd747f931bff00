"""PriorBox and DetectionOutput in ONNX."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.exporting.onnx.graph import Graph
from pycaffe_dist.exporting.onnx.register import converts
from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.kernels.boxes import CENTER_SIZE, CORNER
from pycaffe_dist.layers.prior_box import PriorBox

_LEAST = float(np.finfo(np.float32).min)


@converts("PriorBox", "PriorBoxClustered")
def prior_box(step: Step, graph: Graph) -> None:
    """A constant: the boxes for the map's and the image's size."""
    assert isinstance(step.layer, PriorBox)
    values = graph.constant(np.asarray(step.layer.values, np.float32))
    graph.op("Identity", values, to=step.tops[0])


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
        best, places = graph.ops("TopK", self.scores, [most], to=[graph.new(), graph.new()], axis=1)
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
        image, rank = graph.ops(
            "Split", where, to=[graph.new(), graph.new()], axis=1, num_outputs=2
        )
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
