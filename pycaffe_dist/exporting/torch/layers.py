"""Layers with parameters, pooling and normalization in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.exporting.torch.register import converts
from pycaffe_dist.exporting.torch.source import Source, arguments
from pycaffe_dist.kernels.pooling import PoolingGeometry
from pycaffe_dist.layers.base import is_test
from pycaffe_dist.layers.bn import BN, SEGNET_EPS
from pycaffe_dist.layers.channel_norm import ChannelNorm
from pycaffe_dist.layers.convolution import read_geometry
from pycaffe_dist.layers.pooling import AVE, MAX, STOCHASTIC, Pooling, bins_of
from pycaffe_dist.layers.reduction import ASUM, MEAN, SUMSQ
from pycaffe_dist.schema import caffe_pb2


@converts("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution", "Deconvolution")
def convolution(step: Step, source: Source) -> None:
    """nn.Conv2d and its relatives."""
    param, shape = step.layer.param.convolution_param, step.bottom_shapes[0]
    spatial = len(shape) - 2
    if step.axis(param.axis) != 1 or spatial not in (1, 2, 3):
        raise step.error("has an axis or a number of spatial axes that PyTorch's layers lack")
    geometry = read_geometry(step.layer, spatial)
    options: dict[str, Any] = {}
    for name, values, default in (
        ("stride", geometry.stride, 1),
        ("padding", geometry.pad, 0),
        ("dilation", geometry.dilation, 1),
    ):
        if any(value != default for value in values):
            options[name] = values
    if param.group != 1:
        options["groups"] = param.group
    if not param.bias_term and len(step.blobs) == 1:
        options["bias"] = False
    kind = "ConvTranspose" if step.type == "Deconvolution" else "Conv"
    call = arguments(shape[1], param.num_output, geometry.kernel, **options)
    name = source.module(f"nn.{kind}{spatial}d({call})", *_weights_and_bias(step))
    for index in range(len(step.tops)):
        source.let(step, f"{name}({{{index}}})", index)


def _weights_and_bias(step: Step) -> list[tuple[str, np.ndarray]]:
    return list(zip(("weight", "bias"), step.blobs))


@converts("Im2col")
def im2col(step: Step, source: Source) -> None:
    """F.unfold, in the shape of the windows."""
    shape, top = step.bottom_shapes[0], step.top_shapes[0]
    if step.axis(step.layer.param.convolution_param.axis) != 1 or len(shape) != 4:
        raise step.error("has axes that F.unfold lacks")
    geometry = read_geometry(step.layer, 2)
    call = arguments(geometry.kernel, geometry.dilation, geometry.pad, geometry.stride)
    size = ", ".join(map(str, top[2:]))
    source.let(step, f"F.unfold({{0}}, {call}).unflatten(2, ({size}))")


@converts("InnerProduct")
def inner_product(step: Step, source: Source) -> None:
    """nn.Linear of flat samples, or one that keeps its weights at unit length."""
    param, shape = step.layer.param.inner_product_param, step.bottom_shapes[0]
    axis, outputs = step.axis(param.axis), param.num_output
    weights = step.blobs[0].reshape((-1, outputs) if param.transpose else (outputs, -1))
    weights = weights.T if param.transpose else weights
    biased = len(step.blobs) > 1
    call = arguments(weights.shape[1], outputs, **({} if biased else {"bias": False}))
    values = [("weight", weights), *(("bias", blob.reshape(-1)) for blob in step.blobs[1:])]
    kind = source.part("UnitLinear") if param.normalize else "nn.Linear"
    name = source.module(f"{kind}({call})", *values)
    flat = "{0}" if axis == len(shape) - 1 else f"{{0}}.flatten({axis})"
    source.let(step, f"{name}({flat})")


@converts("Embed")
def embed(step: Step, source: Source) -> None:
    """Rows of a table."""
    rows, size = step.blobs[0].shape
    call = arguments(rows, size, len(step.blobs) > 1)
    values = _weights_and_bias(step)
    name = source.module(f"{source.part('Embed')}({call})", *values)
    source.let(step, f"{name}({{0}})")


@converts("Parameter")
def parameter(step: Step, source: Source) -> None:
    """A parameter of its own."""
    shape = ", ".join(map(str, step.blobs[0].shape))
    name = source.parameter(f"nn.Parameter(torch.zeros({shape}))", step.blobs[0])
    source.let(step, name)


@converts("Scale", "Bias")
def scale(step: Step, source: Source) -> None:
    """A product, a sum, or both."""
    is_scale = step.type == "Scale"
    param: Any = step.layer.param.scale_param if is_scale else step.layer.param.bias_param
    axis, several = step.axis(param.axis), len(step.bottoms) > 1
    if several and not (is_scale and step.blobs):
        value = f"{source.part('spread')}({{1}}, {{0}}, {axis})"
        source.let(step, f"{{0}} {'*' if is_scale else '+'} {value}")
        return
    keys = [] if several or not is_scale else ["weight"]
    if not is_scale or param.bias_term:
        keys.append("bias")
    options = {"scale": "weight" in keys, "bias": "bias" in keys}
    call = f"{step.blobs[0].shape}, {arguments(axis, **options)}"
    name = source.module(f"{source.part('Scale')}({call})", *zip(keys, step.blobs))
    source.let(step, f"{name}({{0}}, {{1}})" if several else f"{name}({{0}})")


@converts("BatchNorm")
def batch_norm(step: Step, source: Source) -> None:
    """Caffe's BatchNorm."""
    layer, param = step.layer, step.layer.param.batch_norm_param
    assert isinstance(layer, ChannelNorm)
    if not layer.fixed and param.stats_batch_size not in (0, step.bottom_shapes[0][0]):
        raise step.error("measures parts of a batch (stats_batch_size)")
    keys = ("mean", "variance", "factor", "weight", "bias")
    numbers = step.blobs[0].size, param.eps, param.moving_average_fraction
    call = arguments(*numbers, layer.fixed, **({"affine": True} if len(step.blobs) > 3 else {}))
    values = [(key, blob.reshape(-1)) for key, blob in zip(keys, step.blobs)]
    name = source.module(f"{source.part('BatchNorm')}({call})", *values)
    source.let(step, f"{name}({{0}})")


@converts("BN")
def bn(step: Step, source: Source) -> None:
    """BN in the forms of both forks."""
    layer, param = step.layer, step.layer.param.bn_param
    assert isinstance(layer, BN)
    keys = ("weight", "bias", "mean", "variance")
    values = [(key, blob.reshape(-1)) for key, blob in zip(keys, step.blobs)]
    channels = step.blobs[0].size
    if len(step.blobs) > 2:
        call = arguments(channels, param.eps, param.momentum, layer.fixed)
        name = source.module(f"{source.part('RunningNorm')}({call})", *values)
        source.let(step, f"{name}({{0}})")
        return
    name = source.module(f"{source.part('Scale')}(({channels},), 1, bias=True)", *values)
    if layer.fixed:
        source.let(step, f"{name}({{0}})")
        return
    part = source.part("batch_norm_of_batch")
    text = f"{part}({{0}}, {name}.weight, {name}.bias, {arguments(SEGNET_EPS)})"
    source.let_first(step, text, 3)


@converts("MVN")
def mvn(step: Step, source: Source) -> None:
    """Differences from the mean, over the deviation."""
    param = step.layer.param.mvn_param
    source.call(step, "mvn", param.across_channels, param.normalize_variance, param.eps)


@converts("Normalize")
def normalize(step: Step, source: Source) -> None:
    """Division by the L2 norm."""
    param, scales = step.layer.param.norm_param, step.blobs[0].reshape(-1)
    call = arguments(scales.size, param.eps, param.across_spatial)
    name = source.module(f"{source.part('Normalize')}({call})", ("weight", scales))
    source.let(step, f"{name}({{0}})")


@converts("LRN")
def lrn(step: Step, source: Source) -> None:
    """F.local_response_norm, or windows of each channel."""
    param = step.layer.param.lrn_param
    rule = param.local_size, param.alpha, param.beta
    if param.norm_region == caffe_pb2.LRNParameter.ACROSS_CHANNELS:
        source.let(step, f"F.local_response_norm({{0}}, {arguments(*rule, param.k)})")
    else:
        source.call(step, "lrn_within", *rule)


def _pool(
    step: Step, source: Source, method: int, geometry: PoolingGeometry, mask: bool = False
) -> str:
    """Return the expression of a pooling."""
    height, width = step.bottom_shapes[0][2:]
    for out, side, stride, pad in zip(
        geometry.output_shape((height, width)), (height, width), geometry.stride, geometry.pad
    ):
        if (out - 1) * stride >= side + pad:
            raise step.error(f"has windows that begin after the image's end, at size {side}")
    window = arguments(geometry.kernel, geometry.stride)
    ceil = {"ceil_mode": True} if geometry.ceil else {}
    if method == STOCHASTIC:
        if not is_test(step.layer.phase):
            raise step.error("draws at random")
        return f"{source.part('stochastic_mean')}({{0}}, {window}, {arguments(geometry.ceil)})"
    # PyTorch's own poolings take pads of up to half of a kernel.
    if all(2 * p <= k for p, k in zip(geometry.pad, geometry.kernel)) and not mask:
        name = "avg_pool2d" if method == AVE else "max_pool2d"
        pad_text = f", {arguments(geometry.pad)}" if any(geometry.pad) else ""
        return f"F.{name}({{0}}, {window}{pad_text}{_more(ceil)})"
    rule = f"{geometry.kernel}, {geometry.stride}, {geometry.pad}, {geometry.ceil}"
    part = source.part("avg_pool" if method == AVE else "max_pool")
    return f"{part}({{0}}, {rule}{_more({'indices': True} if mask else {})})"


def _more(options: dict[str, Any]) -> str:
    return f", {arguments(**options)}" if options else ""


def _image(step: Step) -> tuple[int, int]:
    height, width = step.bottom_shapes[0][2:]
    return height, width


@converts("Pooling")
def pooling(step: Step, source: Source) -> None:
    """F.max_pool2d or F.avg_pool2d; their rules for borders are Caffe's."""
    layer, param = step.layer, step.layer.param.pooling_param
    assert isinstance(layer, Pooling)
    mask = len(step.tops) > 1
    if param.global_pooling and param.pool in (MAX, AVE) and not mask:
        call = "amax" if param.pool == MAX else "mean"
        source.let(step, f"{{0}}.{call}((2, 3), keepdim=True)")
        return
    text = _pool(step, source, param.pool, layer.geometry_for(_image(step)), mask)
    source.let(step, text, None)


@converts("SPP")
def spp(step: Step, source: Source) -> None:
    """A pooling for each level, joined."""
    param = step.layer.param.spp_param
    texts = [
        _pool(step, source, param.pool, bins_of(_image(step), 2**level))
        for level in range(param.pyramid_height)
    ]
    if len(texts) > 1:
        texts = [f"torch.cat([{', '.join(f'{text}.flatten(1)' for text in texts)}], 1)"]
    source.let(step, texts[0])


@converts("Softmax")
def softmax(step: Step, source: Source) -> None:
    """Tensor.softmax."""
    source.let(step, f"{{0}}.softmax({step.axis(step.layer.param.softmax_param.axis)})")


@converts("Reduction")
def reduction(step: Step, source: Source) -> None:
    """A sum or mean of the axes from one on."""
    param = step.layer.param.reduction_param
    texts = {ASUM: ".abs().sum", SUMSQ: ".square().sum", MEAN: ".mean"}
    axes = (*range(step.axis(param.axis), len(step.bottom_shapes[0])),)
    text = f"{{0}}{texts.get(param.operation, '.sum')}({axes})"
    source.let(step, text if param.coeff == 1 else f"{arguments(param.coeff)} * {text}")


@converts("ArgMax")
def arg_max(step: Step, source: Source) -> None:
    """Indices of the largest values."""
    param = step.layer.param.argmax_param
    axis = step.axis(param.axis) if param.HasField("axis") else None
    source.call(step, "arg_max", param.top_k, axis, param.out_max_val)


@converts("Upsample")
def upsample(step: Step, source: Source) -> None:
    """Repeats, or values at the places of a mask."""
    param = step.layer.param.upsample_param
    if len(step.bottoms) == 1:
        scale = param.scale if param.HasField("scale") else 1
        source.let(step, f"{{0}}.repeat_interleave({scale}, 2).repeat_interleave({scale}, 3)")
        return
    source.call(step, "unpool", *step.top_shapes[0][2:])


@converts("Interp")
def interp(step: Step, source: Source) -> None:
    """Interpolation between the corners."""
    param = step.layer.param.interp_param
    size: Sequence[Any] = step.top_shapes[0][2:]
    if param.use_blob_size:
        size = ["{1}.shape[2]", "{1}.shape[3]"]
    cut = [-param.pad_beg, param.pad_end] if param.pad_beg or param.pad_end else []
    call = ", ".join(map(str, [*size, *cut]))
    source.let(step, f"{source.part('interp')}({{0}}, {call})")


@converts("LSTM", "Lstm", "RNN")
def recurrent(step: Step, source: Source) -> None:
    """Caffe's recurrent layers."""
    is_lstm, exposed = step.type != "RNN", step.layer.param.recurrent_param.expose_hidden
    exposed = exposed and step.type != "Lstm"
    states = (2 if is_lstm else 1) if exposed else 0
    static = len(step.bottoms) > 2 + states
    keys = ["x", "h", "bias"] if step.type == "Lstm" else ["x", "bias"]
    if step.type != "Lstm":
        keys += [*(["static"] if static else []), "h"]
    keys += [] if is_lstm else ["out", "out_bias"]
    hidden = step.top_shapes[0][2]
    options = {} if is_lstm else {"lstm": False}
    if static:
        options["static"] = step.blobs[2].shape[1]
    call = arguments(step.blobs[0].shape[1], hidden, **options)
    name = source.module(f"{source.part('Recurrent')}({call})", *zip(keys, step.blobs))
    roles = ["x", "marks", *(["static"] if static else []), *["h", "c"][:states]]
    given = [f"{role}={{{index}}}" for index, role in enumerate(roles[: len(step.bottoms)])]
    text = f"{name}({', '.join(given).replace('x=', '', 1)})"
    source.let(step, text if exposed else f"{text}[0]", None)


@converts("LSTMUnit")
def lstm_unit(step: Step, source: Source) -> None:
    """One step of an LSTM."""
    source.let(step, f"{source.part('lstm_step')}({{0}}, {{1}}, {{2}}[..., None])", None)
