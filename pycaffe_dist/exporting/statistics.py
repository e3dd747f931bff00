"""The running statistics of BatchNorm layers, and folding them into the layers before."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.exporting.steps import Step, Steps
from pycaffe_dist.layers.convolution import read_geometry

_PRODUCTS = ("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution", "InnerProduct")


def running_mean_and_variance(blobs: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the statistics of BatchNorm's blobs, which are sums; without weight both are 0."""
    weight = float(blobs[2].reshape(-1)[0])
    factor = 1 / weight if weight else 0.0
    return blobs[0] * factor, blobs[1] * factor


def fold(net: Steps) -> int:
    """Fold each normalization by running statistics, and a Scale after it, into a product.

    That is the one before, else the one after, if it has no padding.  Only where no other layer
    reads the value between.  Returns the number of layers that went.
    """
    before = len(net.steps)
    for step in [*net.steps]:
        affine = _affine_of(step)
        source = _only_source(net, step)
        if affine is None or source is None or source.type not in _PRODUCTS:
            continue
        if len(source.tops) != 1 or not _per_channel(source, affine[0]):
            continue
        _put_into(source, *affine)
        source.tops = step.tops
        net.steps.remove(step)
    # The last first: a Scale goes on, and then the BatchNorm before it.
    for step in reversed([*net.steps]):
        affine = _affine_of(step)
        reader = _only_reader(net, step)
        if affine is not None and reader is not None and _reads_channels(reader, affine[0]):
            _put_before(reader, *affine)
            reader.bottoms = step.bottoms
            net.steps.remove(step)
    return before - len(net.steps)


def _only_reader(net: Steps, step: Step) -> Step | None:
    """Return the layer that reads a step's top, if it is the only one and reads nothing else."""
    value = step.tops[0]
    readers = [other for other in net.steps if value in other.bottoms]
    if len(readers) != 1 or value in net.outputs or len(readers[0].bottoms) != 1:
        return None
    return readers[0]


def _reads_channels(reader: Step, factor: np.ndarray) -> bool:
    """Tell whether a product's inputs are the channels, on axis 1, and nothing else."""
    shape, param = reader.bottom_shapes[0], reader.layer.param
    if len(shape) < 2 or shape[1] != factor.size:
        return False
    if reader.type == "InnerProduct":
        return reader.axis(param.inner_product_param.axis) == 1
    if reader.type != "Convolution" or reader.axis(param.convolution_param.axis) != 1:
        return False
    # Padding is 0 after a normalization, and not before it.
    return not any(read_geometry(reader.layer, len(shape) - 2).pad)


def _put_before(reader: Step, factor: np.ndarray, bias: np.ndarray) -> None:
    """Multiply a product's inputs with a factor, and add a bias to them."""
    param, kind = reader.layer.param, reader.blobs[0].dtype
    transposed = reader.type == "InnerProduct" and param.inner_product_param.transpose
    groups = param.convolution_param.group if reader.type == "Convolution" else 1
    weights = reader.blobs[0].astype(np.float64)
    weights = weights.T if transposed else weights
    parts = weights.reshape(groups, len(weights) // groups, factor.size // groups, -1)
    factor, bias = (np.reshape(each, (groups, 1, -1, 1)) for each in (factor, bias))
    shift = (parts * bias).sum((2, 3)).reshape(-1)
    weights = (parts * factor).reshape(weights.shape)
    old = reader.blobs[1].reshape(-1) if len(reader.blobs) > 1 else 0.0
    reader.blobs = [
        np.ascontiguousarray(weights.T if transposed else weights, kind),
        (old + shift).astype(kind),
    ]


def _only_source(net: Steps, step: Step) -> Step | None:
    """Return the layer that writes a step's only bottom, if no other one reads it."""
    if len(step.bottoms) != 1:
        return None
    value = step.bottoms[0]
    readers = sum(value in other.bottoms for other in net.steps)
    sources = [other for other in net.steps if value in other.tops]
    return sources[0] if readers == 1 and sources and value not in net.outputs else None


def _affine_of(step: Step) -> tuple[np.ndarray, np.ndarray] | None:
    """Return factor and bias of each channel, if that is all that a step does."""
    bottom = Blob(step.bottom_shapes[0]) if len(step.bottoms) == 1 else None
    return None if bottom is None else step.layer.channel_affine(bottom)


def _per_channel(source: Step, factor: np.ndarray) -> bool:
    """Tell whether a product's outputs are the channels, on axis 1."""
    param = source.layer.param
    if source.type == "InnerProduct":
        own = param.inner_product_param
        return source.axis(own.axis) == 1 and factor.size == own.num_output
    return source.axis(param.convolution_param.axis) == 1


def _put_into(source: Step, factor: np.ndarray, bias: np.ndarray) -> None:
    """Multiply a product's outputs with a factor, and add a bias."""
    weights = source.blobs[0].astype(np.float64)
    transposed = source.type == "InnerProduct" and source.layer.param.inner_product_param.transpose
    rows = (1, -1) if transposed else (-1, *(1,) * (weights.ndim - 1))
    kind = source.blobs[0].dtype
    old = source.blobs[1].reshape(-1) if len(source.blobs) > 1 else 0.0
    source.blobs = [
        (weights * factor.reshape(rows)).astype(kind),
        (old * factor + bias).astype(kind),
    ]
