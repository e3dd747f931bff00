"""Normalizations, softmax, scales and reductions in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pycaffe_dist.exporting.onnx.graph import Graph
from pycaffe_dist.exporting.onnx.register import converts
from pycaffe_dist.exporting.statistics import running_mean_and_variance
from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.layers.bn import BN, SEGNET_EPS
from pycaffe_dist.layers.channel_norm import ChannelNorm
from pycaffe_dist.layers.reduction import ASUM, MEAN, SUMSQ


def _column(graph: Graph, value: np.ndarray, axes: int) -> str:
    """Return a vector over axis 1 of ``axes`` as a constant that spreads over the others."""
    return graph.constant(value.reshape(-1, *(1,) * (axes - 2)))


def _scaled(step: Step, graph: Graph, x: str, own: list[np.ndarray]) -> None:
    """Multiply by the first and add the second, numbers of each channel; this is the top."""
    factor, bias = (_column(graph, value, len(step.bottom_shapes[0])) for value in own)
    graph.op("Add", graph.op("Mul", x, factor), bias, to=step.tops[0])


def _moments(graph: Graph, x: str, axes: list[int]) -> tuple[str, str, str]:
    """Return mean, variance, and the differences from the mean."""
    mean = graph.op("ReduceMean", x, axes, keepdims=1)
    rest = graph.op("Sub", x, mean)
    return mean, graph.op("ReduceMean", graph.op("Mul", rest, rest), axes, keepdims=1), rest


def _by_batch(step: Step, graph: Graph, eps: float, to: str | None = None) -> tuple[str, str, str]:
    """Normalize by the batch's statistics; return the result, mean and variance."""
    axes = [axis for axis in range(len(step.bottom_shapes[0])) if axis != 1]
    mean, variance, rest = _moments(graph, step.bottoms[0], axes)
    deviation = graph.op("Sqrt", graph.op("Add", variance, eps))
    return graph.op("Div", rest, deviation, to=to), mean, variance


def _fixed(step: Step, graph: Graph, statistics: Sequence[Any], eps: float, own: list) -> None:
    """Add a BatchNormalization with a factor and a bias of each channel, if there are ``own``."""
    mean, variance = statistics
    values = [np.ones_like(mean), np.zeros_like(mean), mean, variance]
    values[: len(own)] = own
    names = [graph.parameter(value.reshape(-1), index) for index, value in enumerate(values)]
    graph.op("BatchNormalization", step.bottoms[0], *names, to=step.tops[0], epsilon=eps)


@converts("BatchNorm")
def batch_norm(step: Step, graph: Graph) -> None:
    """BatchNormalization by the running statistics, or a normalization by the batch's."""
    layer, own = step.layer, step.blobs[3:]
    assert isinstance(layer, ChannelNorm)
    eps = layer.param.batch_norm_param.eps
    if len(step.bottom_shapes[0]) < 2:
        raise step.error("needs a channel axis")
    if layer.fixed:
        _fixed(step, graph, running_mean_and_variance(step.blobs), eps, own)
        return
    if layer.param.batch_norm_param.stats_batch_size not in (0, step.bottom_shapes[0][0]):
        raise step.error("measures parts of a batch (stats_batch_size)")
    y, _, _ = _by_batch(step, graph, eps, None if own else step.tops[0])
    if own:
        _scaled(step, graph, y, own)


@converts("BN")
def bn(step: Step, graph: Graph) -> None:
    """BN in the forms of both forks."""
    layer, blobs = step.layer, step.blobs
    assert isinstance(layer, BN)
    own = blobs[:2]
    if len(blobs) > 2 and layer.fixed:
        _fixed(step, graph, blobs[2:], layer.param.bn_param.eps, own)
        return
    if layer.fixed:
        _scaled(step, graph, step.bottoms[0], own)
        return
    eps = layer.param.bn_param.eps if len(blobs) > 2 else SEGNET_EPS
    y, *moments = _by_batch(step, graph, eps)
    _scaled(step, graph, y, own)
    for value, top in zip(moments, step.tops[1:]):
        graph.op("Reshape", value, [1, -1, 1, 1], to=top)


@converts("MVN")
def mvn(step: Step, graph: Graph) -> None:
    """Differences from the mean, divided by the deviation."""
    param, shape = step.layer.param.mvn_param, step.bottom_shapes[0]
    x = graph.op("Reshape", step.bottoms[0], [0] * len(shape) + [1] * (4 - len(shape)))
    _, variance, rest = _moments(graph, x, [1, 2, 3] if param.across_channels else [2, 3])
    if not param.normalize_variance:
        graph.op("Identity", rest, to=step.tops[0])
        return
    deviation = graph.op("Add", graph.op("Sqrt", variance), param.eps)
    graph.op("Div", rest, deviation, to=step.tops[0])


@converts("Normalize")
def normalize(step: Step, graph: Graph) -> None:
    """Division by the L2 norm."""
    param, axes, x = step.layer.param.norm_param, len(step.bottom_shapes[0]), step.bottoms[0]
    summed = [*range(1, axes)] if param.across_spatial else [1]
    squares = graph.op("ReduceSumSquare", x, summed, keepdims=1)
    norm = graph.op("Sqrt", graph.op("Add", squares, param.eps))
    scale = _column(graph, step.blobs[0].reshape(-1), axes)
    graph.op("Mul", graph.op("Div", x, norm), scale, to=step.tops[0])


@converts("Softmax")
def softmax(step: Step, graph: Graph) -> None:
    """Softmax along the axis."""
    axis = step.axis(step.layer.param.softmax_param.axis)
    graph.op("Softmax", step.bottoms[0], to=step.tops[0], axis=axis)


def _spread(step: Step, graph: Graph, param: Any, index: int) -> str:
    """Return parameter ``index``, or the second bottom, with axes of size 1 after its own."""
    own = len(step.bottoms) == 1 or index > 0
    blobs = step.blobs if len(step.bottoms) == 1 else [np.empty(0), *step.blobs]
    shape = blobs[index].shape if own else step.bottom_shapes[1]
    after = len(step.bottom_shapes[0]) - step.axis(param.axis) - len(shape) if shape else 0
    if own:
        return graph.parameter(blobs[index], index, (*shape, *(1,) * after))
    ones = [*range(len(shape), len(shape) + after)]
    return graph.op("Unsqueeze", step.bottoms[1], ones) if ones else step.bottoms[1]


@converts("Scale")
def scale(step: Step, graph: Graph) -> None:
    """A product, and a sum with the bias."""
    param, top = step.layer.param.scale_param, step.tops[0]
    y = graph.op(
        "Mul",
        step.bottoms[0],
        _spread(step, graph, param, 0),
        to=None if param.bias_term else top,
    )
    if param.bias_term:
        graph.op("Add", y, _spread(step, graph, param, 1), to=top)


@converts("Bias")
def bias(step: Step, graph: Graph) -> None:
    """A sum."""
    value = _spread(step, graph, step.layer.param.bias_param, 0)
    graph.op("Add", step.bottoms[0], value, to=step.tops[0])


@converts("ChannelScale")
def channel_scale(step: Step, graph: Graph) -> None:
    """A product with a factor of each position."""
    if not step.layer.param.channel_scale_param.do_forward:
        graph.op("Identity", step.bottoms[0], to=step.tops[0])
        return
    sizes = graph.sizes(step.bottoms[0], 2)
    shape = graph.op("Concat", graph.sizes(step.bottoms[0], 0, 1), [1], sizes, axis=0)
    factors = graph.op("Reshape", step.bottoms[1], shape)
    graph.op("Mul", step.bottoms[0], factors, to=step.tops[0])


@converts("Chnwise")
def channel_sum(step: Step, graph: Graph) -> None:
    """A sum with a value of each channel."""
    first, second = step.layer.param.chnwise_param.coeff or (1.0, 1.0)
    shape = [0, -1, *(1,) * (len(step.bottom_shapes[0]) - 2)]
    values = graph.op("Mul", graph.op("Reshape", step.bottoms[1], shape), second)
    graph.op("Add", graph.op("Mul", step.bottoms[0], first), values, to=step.tops[0])


@converts("Reduction")
def reduction(step: Step, graph: Graph) -> None:
    """A reduction of the axes from one on."""
    param = step.layer.param.reduction_param
    kinds = {ASUM: "ReduceL1", SUMSQ: "ReduceSumSquare", MEAN: "ReduceMean"}
    axes = [*range(step.axis(param.axis), len(step.bottom_shapes[0]))]
    kind = kinds.get(param.operation, "ReduceSum")
    y = graph.op(kind, step.bottoms[0], axes, keepdims=0)
    graph.op("Mul", y, param.coeff, to=step.tops[0])


@converts("ArgMax")
def arg_max(step: Step, graph: Graph) -> None:
    """TopK of the values in reverse, since Caffe prefers the last of equal ones."""
    param, x = step.layer.param.argmax_param, step.bottoms[0]
    given = param.HasField("axis")
    axis = step.axis(param.axis) if given else 1
    if not given:
        x = graph.op("Reshape", x, [0, -1])
    last, end = [-1], [np.iinfo(np.int64).min + 1]
    back = graph.op("Slice", x, last, end, [axis], [-1])
    values, places = graph.ops(
        "TopK", back, [param.top_k], to=[graph.new(), graph.new()], axis=axis
    )
    size = graph.op("Sub", graph.sizes(x, axis, axis + 1), [1])
    index = graph.cast(graph.op("Sub", size, places), float)
    if given:
        graph.op("Identity", values if param.out_max_val else index, to=step.tops[0])
        return
    pair = [index, values] if param.out_max_val else [index]
    joined = graph.op("Concat", *pair, axis=1)
    ones = [1] * (len(step.bottom_shapes[0]) - 3)
    graph.op("Reshape", joined, [-1, len(pair), param.top_k, *ones], to=step.tops[0])
