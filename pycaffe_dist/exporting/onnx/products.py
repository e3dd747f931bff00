"""Convolutions, inner products and embeddings in ONNX."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pycaffe_dist.exporting.onnx.graph import Graph
from pycaffe_dist.exporting.onnx.register import converts
from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.layers.convolution import read_geometry


class _Images:
    """Bottoms and tops of a convolution as ONNX needs them: (images, channels, *spatial)."""

    def __init__(self, step: Step, graph: Graph):
        self._step, self._graph = step, graph
        self.axis = step.axis(step.layer.param.convolution_param.axis)
        self.spatial = len(step.bottom_shapes[0]) - self.axis - 1
        self._plain = self.axis == 1 and self.spatial > 0

    def take(self, index: int) -> str:
        """Return a bottom."""
        shape = self._step.bottom_shapes[index][self.axis :]
        pixel = [] if self.spatial else [1]
        name = self._step.bottoms[index]
        return name if self._plain else self._graph.op("Reshape", name, [-1, *shape, *pixel])

    def put(self, kind: str, index: int, *inputs: str, **attributes: Any) -> None:
        """Add the node of a top."""
        top, shape = self._step.tops[index], self._step.top_shapes[index]
        if self._plain:
            self._graph.op(kind, *inputs, to=top, **attributes)
            return
        flat = self._graph.op(kind, *inputs, **attributes)
        first = [] if self.axis == 0 else [-1]
        self._graph.op("Reshape", flat, [*first, *shape[len(first) :]], to=top)


@converts("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution", "Deconvolution")
def convolution(step: Step, graph: Graph) -> None:
    """Conv, or ConvTranspose, for each bottom."""
    images = _Images(step, graph)
    weights = step.blobs[0]
    attributes: dict[str, Any] = {"group": step.layer.param.convolution_param.group}
    if images.spatial:
        attributes |= _window(step, images.spatial)
    else:
        weights = weights[..., np.newaxis]
    inputs = [graph.parameter(weights, 0)]
    inputs += [graph.parameter(blob, 1) for blob in step.blobs[1:]]
    kind = "ConvTranspose" if step.type == "Deconvolution" else "Conv"
    for index in range(len(step.tops)):
        images.put(kind, index, images.take(index), *inputs, **attributes)


def _window(step: Step, spatial: int) -> dict[str, Any]:
    geometry = read_geometry(step.layer, spatial)
    return {
        "kernel_shape": geometry.kernel,
        "strides": geometry.stride,
        "pads": geometry.pad * 2,
        "dilations": geometry.dilation,
    }


@converts("Im2col")
def im2col(step: Step, graph: Graph) -> None:
    """A Conv whose kernels pick one element each."""
    images = _Images(step, graph)
    channels = step.bottom_shapes[0][images.axis]
    window = _window(step, images.spatial)
    kernel = read_geometry(step.layer, images.spatial).kernel
    picks = np.eye(math.prod(kernel)).reshape(-1, 1, *kernel)
    weights = graph.constant(np.tile(picks, (channels, *(1,) * (len(kernel) + 1))))
    images.put("Conv", 0, images.take(0), weights, group=channels, **window)


@converts("InnerProduct")
def inner_product(step: Step, graph: Graph) -> None:
    """Gemm, or MatMul where there are several axes of samples."""
    param = step.layer.param.inner_product_param
    axis = step.axis(param.axis)
    weights = step.blobs[0].reshape(
        (-1, param.num_output) if param.transpose else (param.num_output, -1)
    )
    bias = [graph.parameter(blob.reshape(-1), 1) for blob in step.blobs[1:]]
    x = graph.op("Reshape", step.bottoms[0], [0] * axis + [-1])
    if axis == 1:
        name = graph.parameter(weights, 0)
        graph.op("Gemm", x, name, *bias, to=step.tops[0], transB=int(not param.transpose))
        return
    name = graph.parameter(weights if param.transpose else weights.T, 0)
    y = graph.op("MatMul", x, name, to=None if bias else step.tops[0])
    if bias:
        graph.op("Add", y, *bias, to=step.tops[0])


@converts("Embed")
def embed(step: Step, graph: Graph) -> None:
    """Gather of rows."""
    rows = graph.cast(step.bottoms[0], np.int64)
    bias = [graph.parameter(blob, 1) for blob in step.blobs[1:]]
    y = graph.op(
        "Gather", graph.parameter(step.blobs[0], 0), rows, to=None if bias else step.tops[0]
    )
    if bias:
        graph.op("Add", y, *bias, to=step.tops[0])
