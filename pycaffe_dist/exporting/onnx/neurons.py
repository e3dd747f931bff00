"""Element-wise layers in ONNX, and layers that change nothing."""

from __future__ import annotations

import math

from pycaffe_dist.exporting.onnx.graph import Graph
from pycaffe_dist.exporting.onnx.register import converts
from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.layers.eltwise import MAX, PROD


def _plain(step: Step, graph: Graph, kind: str, **attributes: float) -> None:
    graph.op(kind, step.bottoms[0], to=step.tops[0], **attributes)


_KINDS = {
    "AbsVal": "Abs",
    "BNLL": "Softplus",
    "Mish": "Mish",
    "Sigmoid": "Sigmoid",
    "TanH": "Tanh",
}


@converts(*_KINDS)
def same(step: Step, graph: Graph) -> None:
    """An operator of another name."""
    _plain(step, graph, _KINDS[step.type])


@converts("ReLU")
def relu(step: Step, graph: Graph) -> None:
    """Relu, or LeakyRelu with the slope."""
    slope = step.layer.rectifier_slope
    if slope:
        _plain(step, graph, "LeakyRelu", alpha=slope)
    else:
        _plain(step, graph, "Relu")


@converts("ReLU6")
def relu6(step: Step, graph: Graph) -> None:
    """A rectifier, and Min with 6."""
    x = graph.op("LeakyRelu", step.bottoms[0], alpha=step.layer.param.relu6_param.negative_slope)
    graph.op("Min", x, 6.0, to=step.tops[0])


@converts("PReLU")
def prelu(step: Step, graph: Graph) -> None:
    """A slope per channel."""
    axes = len(step.bottom_shapes[0])
    slope = graph.parameter(step.blobs[0], 0, (step.blobs[0].size, *(1,) * (axes - 2)))
    graph.op("PRelu", step.bottoms[0], slope, to=step.tops[0])


@converts("HardSigmoid")
def hard_sigmoid(step: Step, graph: Graph) -> None:
    """HardSigmoid with the fork's numbers."""
    _plain(step, graph, "HardSigmoid", alpha=0.2, beta=0.5)


@converts("ELU")
def elu(step: Step, graph: Graph) -> None:
    """Elu."""
    _plain(step, graph, "Elu", alpha=step.layer.param.elu_param.alpha)


@converts("SeLu")
def selu(step: Step, graph: Graph) -> None:
    """Selu."""
    param = step.layer.param.selu_param
    _plain(step, graph, "Selu", alpha=param.alpha, gamma=getattr(param, "lambda"))


@converts("Swish")
def swish(step: Step, graph: Graph) -> None:
    """x times the Sigmoid of beta·x."""
    x = step.bottoms[0]
    gate = graph.op("Sigmoid", graph.op("Mul", x, step.layer.param.swish_param.beta))
    graph.op("Mul", x, gate, to=step.tops[0])


@converts("Clip")
def clip(step: Step, graph: Graph) -> None:
    """Clip; the upper limit is never below the lower one."""
    param = step.layer.param.clip_param
    graph.op("Clip", step.bottoms[0], param.min, max(param.min, param.max), to=step.tops[0])


@converts("Threshold")
def threshold(step: Step, graph: Graph) -> None:
    """1 where greater."""
    limit = step.layer.param.threshold_param.threshold
    graph.cast(graph.op("Greater", step.bottoms[0], limit), float, to=step.tops[0])


def _linear(graph: Graph, x: str, scale: float, shift: float) -> str:
    if scale != 1:
        x = graph.op("Mul", x, scale)
    return graph.op("Add", x, shift) if shift else x


@converts("Power")
def power(step: Step, graph: Graph) -> None:
    """Pow of a scaled and shifted value; without either, the same."""
    param = step.layer.param.power_param
    x = _linear(graph, step.bottoms[0], param.scale, param.shift)
    if param.power == 1:
        graph.op("Identity", x, to=step.tops[0])
    else:
        graph.op("Pow", x, param.power, to=step.tops[0])


@converts("Exp")
def exp(step: Step, graph: Graph) -> None:
    """Exp of a scaled and shifted value."""
    param = step.layer.param.exp_param
    base = 1.0 if param.base == -1 else math.log(param.base)
    x = _linear(graph, step.bottoms[0], base * param.scale, base * param.shift)
    graph.op("Exp", x, to=step.tops[0])


@converts("Log")
def log(step: Step, graph: Graph) -> None:
    """Log of a scaled and shifted value, in units of the base's."""
    param = step.layer.param.log_param
    base = 1.0 if param.base == -1 else math.log(param.base)
    x = graph.op("Log", _linear(graph, step.bottoms[0], param.scale, param.shift))
    graph.op("Mul", x, 1 / base, to=step.tops[0])


@converts("Eltwise")
def eltwise(step: Step, graph: Graph) -> None:
    """Sum, Max, or products one after the other."""
    param, values, top = step.layer.param.eltwise_param, list(step.bottoms), step.tops[0]
    if param.operation == PROD:
        for value in values[1:-1]:
            values[0] = graph.op("Mul", values[0], value)
        graph.op("Mul", values[0], values[-1], to=top)
        return
    for index, factor in enumerate(param.coeff):
        if factor != 1:
            values[index] = graph.op("Mul", values[index], factor)
    graph.op("Max" if param.operation == MAX else "Sum", *values, to=top)


@converts("Axpy")
def axpy(step: Step, graph: Graph) -> None:
    """a·x + b, with a stretched over the pixels."""
    a, x, b = step.bottoms
    wide = graph.op("Reshape", a, [0, 0] + [1] * (len(step.bottom_shapes[1]) - 2))
    graph.op("Add", graph.op("Mul", wide, x), b, to=step.tops[0])


@converts("Dropout")
def dropout(step: Step, graph: Graph) -> None:
    """The same values, or scaled down where they are not scaled up in training."""
    param = step.layer.param.dropout_param
    if param.sample_weights_test:
        raise step.error("draws at random in inference (sample_weights_test)")
    factor = 1.0 if param.scale_train else 1 - param.dropout_ratio
    graph.op("Identity" if factor == 1 else "Mul", *_with(step, factor), to=step.tops[0])


def _with(step: Step, factor: float) -> list:
    return [step.bottoms[0]] if factor == 1 else [step.bottoms[0], factor]


@converts("Split")
def split(step: Step, graph: Graph) -> None:
    """The same value under several names."""
    for top in step.tops:
        graph.op("Identity", step.bottoms[0], to=top)


@converts("Silence")
def silence(step: Step, graph: Graph) -> None:
    """Nothing."""


@converts("Parameter")
def parameter(step: Step, graph: Graph) -> None:
    """A constant."""
    graph.op("Identity", graph.parameter(step.blobs[0], 0), to=step.tops[0])
