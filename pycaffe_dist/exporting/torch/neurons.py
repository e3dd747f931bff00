"""Element-wise layers in PyTorch, and layers that change shapes or nothing."""

from __future__ import annotations

import math
from typing import Any

from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.exporting.torch.register import converts
from pycaffe_dist.exporting.torch.source import Source, arguments
from pycaffe_dist.layers.eltwise import MAX, PROD
from pycaffe_dist.layers.permutation import Rearranging
from pycaffe_dist.layers.prior_box import PriorBox

_PLAIN = {
    "AbsVal": "{0}.abs()",
    "BNLL": "F.softplus({0}, threshold=50)",
    "Mish": "F.mish({0})",
    "Sigmoid": "{0}.sigmoid()",
    "TanH": "{0}.tanh()",
    "HardSigmoid": "(0.2 * {0} + 0.5).clamp(0, 1)",
    "Axpy": "{0}.reshape(*{0}.shape[:2], *(1,) * ({1}.dim() - 2)) * {1} + {2}",
    "BatchReindex": "{0}[{1}.long()]",
}


@converts(*_PLAIN)
def plain(step: Step, source: Source) -> None:
    """An expression without options."""
    source.let(step, _PLAIN[step.type])


@converts("ReLU", "ReLU6")
def relu(step: Step, source: Source) -> None:
    """A rectifier, limited for ReLU6."""
    is_six = step.type == "ReLU6"
    param = step.layer.param.relu6_param if is_six else step.layer.param.relu_param
    slope = param.negative_slope
    text = f"F.leaky_relu({{0}}, {arguments(slope)})" if slope else "F.relu({0})"
    source.let(step, f"{text}.clamp(max=6)" if is_six else text)


@converts("PReLU")
def prelu(step: Step, source: Source) -> None:
    """nn.PReLU."""
    slopes = step.blobs[0].reshape(-1)
    name = source.module(f"nn.PReLU({slopes.size})", ("weight", slopes))
    source.let(step, f"{name}({{0}})")


@converts("ELU", "SeLu", "Swish", "Clip", "Threshold", "Power", "Exp", "Log")
def function(step: Step, source: Source) -> None:
    """A function with numbers."""
    source.let(step, _FUNCTIONS[step.type](step.layer.param))


def _linear(scale: float, shift: float) -> str:
    text = "{0}" if scale == 1 else f"{arguments(scale)} * {{0}}"
    return f"({text} + {arguments(shift)})" if shift else f"({text})" if scale != 1 else text


def _power(param: Any) -> str:
    own = param.power_param
    text = _linear(own.scale, own.shift)
    return text if own.power == 1 else f"{text}.pow({arguments(own.power)})"


def _exp(param: Any) -> str:
    own = param.exp_param
    base = 1.0 if own.base == -1 else math.log(own.base)
    return f"{_linear(base * own.scale, base * own.shift)}.exp()"


def _log(param: Any) -> str:
    own = param.log_param
    text = f"{_linear(own.scale, own.shift)}.log()"
    return text if own.base == -1 else f"{text} / {arguments(math.log(own.base))}"


def _clip(param: Any) -> str:
    own = param.clip_param
    return f"{{0}}.clamp({arguments(own.min, max(own.min, own.max))})"


_FUNCTIONS = {
    "ELU": lambda param: f"F.elu({{0}}, {arguments(param.elu_param.alpha)})",
    "SeLu": lambda param: (
        f"{arguments(getattr(param.selu_param, 'lambda'))} * "
        f"F.elu({{0}}, {arguments(param.selu_param.alpha)})"
    ),
    "Swish": lambda param: f"{{0}} * ({arguments(param.swish_param.beta)} * {{0}}).sigmoid()",
    "Clip": _clip,
    "Threshold": lambda param: f"({{0}} > {arguments(param.threshold_param.threshold)}).to({{0}})",
    "Power": _power,
    "Exp": _exp,
    "Log": _log,
}


@converts("Eltwise")
def eltwise(step: Step, source: Source) -> None:
    """A chain of products, sums or maxima."""
    param = step.layer.param.eltwise_param
    names = [f"{{{index}}}" for index in range(len(step.bottoms))]
    if param.operation == MAX:
        text = names[0]
        for name in names[1:]:
            text = f"torch.maximum({text}, {name})"
    elif param.operation == PROD:
        text = " * ".join(names)
    else:
        factors = param.coeff or [1.0] * len(names)
        terms = (n if f == 1 else f"{arguments(f)} * {n}" for n, f in zip(names, factors))
        text = " + ".join(terms)
    source.let(step, text)


@converts("Dropout")
def dropout(step: Step, source: Source) -> None:
    """nn.Dropout, or the fork's forms."""
    param = step.layer.param.dropout_param
    if param.sample_weights_test or not param.scale_train:
        raise step.error("has a form of dropout that PyTorch lacks")
    name = source.module(f"nn.Dropout({arguments(param.dropout_ratio)})")
    source.let(step, f"{name}({{0}})")


@converts("ChannelScale")
def channel_scale(step: Step, source: Source) -> None:
    """A product with a factor of each position."""
    param = step.layer.param.channel_scale_param
    if not (param.do_forward and param.do_backward_feature and param.do_backward_scale):
        raise step.error("leaves out the product or a gradient, which its exported form has")
    sizes = ", ".join(map(str, step.bottom_shapes[0][2:]))
    source.let(step, f"{{0}} * {{1}}.reshape(len({{0}}), 1, {sizes})")


@converts("Chnwise")
def channel_sum(step: Step, source: Source) -> None:
    """A sum with a value of each channel, which gets no gradient."""
    first, second = step.layer.param.chnwise_param.coeff or (1.0, 1.0)
    ones = ", 1" * (len(step.bottom_shapes[0]) - 2)
    values = f"{{1}}.detach().reshape(len({{0}}), -1{ones})"
    source.let(step, f"{arguments(first)} * {{0}} + {arguments(second)} * {values}")


@converts("Split")
def split(step: Step, source: Source) -> None:
    """The same value under several names."""
    for index in range(len(step.tops)):
        source.let(step, "{0}", index)


@converts("Silence")
def silence(step: Step, source: Source) -> None:
    """Nothing."""


@converts("PriorBox", "PriorBoxClustered")
def prior_box(step: Step, source: Source) -> None:
    """A constant."""
    assert isinstance(step.layer, PriorBox)
    source.let(step, source.buffer(step.layer.values))


def _old_axis(step: Step, param: Any, old: str) -> int:
    return step.axis(getattr(param, old) if param.HasField(old) else param.axis)


@converts("Concat")
def concat(step: Step, source: Source) -> None:
    """torch.cat."""
    names = ", ".join(f"{{{index}}}" for index in range(len(step.bottoms)))
    axis = _old_axis(step, step.layer.param.concat_param, "concat_dim")
    source.let(step, f"torch.cat([{names}], {axis})")


@converts("Slice")
def slice_(step: Step, source: Source) -> None:
    """Views of the parts."""
    axis = _old_axis(step, step.layer.param.slice_param, "slice_dim")
    sizes = [shape[axis] for shape in step.top_shapes]
    if axis == 0 and len(set(sizes)) == 1:
        text = f"{{0}}.chunk({len(sizes)})"
    else:
        text = f"{{0}}.split({sizes}, {axis})"
    source.let(step, text if len(sizes) > 1 else f"{text}[0]", None)


@converts("Tile")
def tile(step: Step, source: Source) -> None:
    """Repeats of an axis."""
    param = step.layer.param.tile_param
    repeats = [1] * len(step.bottom_shapes[0])
    repeats[step.axis(param.axis)] = param.tiles
    source.let(step, f"{{0}}.repeat({', '.join(map(str, repeats))})")


@converts("Crop")
def crop(step: Step, source: Source) -> None:
    """Views of the sizes of the second bottom."""
    param = step.layer.param.crop_param
    axis = step.axis(param.axis)
    offsets = list(param.offset) or [0]
    offsets *= len(step.bottom_shapes[0]) - axis if len(offsets) == 1 else 1
    source.let(step, f"{source.part('crop_like')}({{0}}, {{1}}, {axis}, {offsets})")


@converts("Flatten")
def flatten(step: Step, source: Source) -> None:
    """Tensor.flatten."""
    param = step.layer.param.flatten_param
    start, stop = step.axis(param.axis), step.axis(param.end_axis)
    last = len(step.bottom_shapes[0]) - 1
    source.let(
        step, f"{{0}}.flatten({start})" if stop == last else f"{{0}}.flatten({start}, {stop})"
    )


@converts("Reshape")
def reshape(step: Step, source: Source) -> None:
    """Tensor.reshape."""
    param, axes = step.layer.param.reshape_param, len(step.bottom_shapes[0])
    start = param.axis if param.axis >= 0 else axes + param.axis + 1
    stop = axes if param.num_axes == -1 else start + param.num_axes
    sizes = [f"{{0}}.shape[{axis}]" for axis in range(start)]
    for index, size in enumerate(param.shape.dim):
        sizes.append(str(size) if size else f"{{0}}.shape[{start + index}]")
    sizes += [f"{{0}}.shape[{axis}]" for axis in range(stop, axes)]
    source.let(step, f"{{0}}.reshape({', '.join(sizes)})")


@converts("Permute", "Transpose", "ShuffleChannel", "Reorg")
def rearrange(step: Step, source: Source) -> None:
    """Tensor.permute, of another shape for ShuffleChannel and Reorg."""
    assert isinstance(step.layer, Rearranging)
    made = step.layer.made
    assert made is not None
    if step.type in ("Permute", "Transpose"):
        source.let(step, f"{{0}}.permute({', '.join(map(str, made.order))})")
        return
    shapes = made.shape[1:], made.order, made.top[1:]
    source.let(step, f"{source.part('rearrange')}({{0}}, {', '.join(map(str, shapes))})")


@converts("Reverse", "Flip")
def flip(step: Step, source: Source) -> None:
    """Tensor.flip."""
    if step.type == "Reverse":
        axes = [step.axis(step.layer.param.reverse_param.axis)]
    else:
        param = step.layer.param.flip_param
        axes = [2] * param.flip_height + [3] * param.flip_width
    source.let(step, f"{{0}}.flip({axes})")


@converts("Filter")
def filter_(step: Step, source: Source) -> None:
    """Samples by a mask."""
    selector = f"{{{len(step.bottoms) - 1}}}"
    for index in range(len(step.tops)):
        source.let(step, f"{{{index}}}[{selector}.flatten() != 0]", index)
