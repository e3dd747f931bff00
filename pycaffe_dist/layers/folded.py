"""Inference: products whose weights are rearranged once and take in the layers behind them."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels import bfloat16
from pycaffe_dist.kernels.inner_product import InnerProduct as InnerProductPlan
from pycaffe_dist.layers.base import Layer
from pycaffe_dist.layers.convolution import Convolution
from pycaffe_dist.layers.inner_product import InnerProduct
from pycaffe_dist.layers.joined import Joined


class Folded(Joined):
    """A product, layers that scale and shift its channels, and maybe a sum and a rectifier.

    `forward` sets the last layer's top with the weights of the last `hold`.  With a sum (``adds``)
    the top holds the sum's other bottom before.
    """

    def __init__(self, layer: Layer, following: Sequence[Layer], adds: bool):
        super().__init__(layer, *following)
        self._adds = adds
        slopes = [other.rectifier_slope for other in following]
        self._slope = next((slope for slope in slopes if slope is not None), None)
        self._plan: Any = None
        self._bias: np.ndarray | None = None

    @property
    def repeats_calls(self) -> bool:
        """In float32: the parameters stay as they are until the next `hold`."""
        return self.layers[0].context.dtype == np.float32

    @property
    def _rounds(self) -> bool:
        """Whether factors may be rounded to bfloat16."""
        context = self.layers[0].context
        return context.precision == "bfloat16" and context.dtype == np.float32

    @staticmethod
    @abc.abstractmethod
    def has_channels(layer: Layer, top: Blob) -> bool:
        """Tell whether axis 1 of the top has one channel for each output of the layer."""

    @staticmethod
    def can_add(layer: Layer) -> bool:
        """Tell whether forward of this layer can add to its top."""
        return False

    @abc.abstractmethod
    def hold(self, bottom: Blob, top: Blob) -> None:
        """Plan for the blobs' shapes, and take the layers' present parameters."""

    def _fold(self, top: Blob, rows: tuple[int, ...]) -> np.ndarray:
        """Return the weights, and set the bias, of all that scales and shifts the channels.

        ``rows`` is the shape of a factor for each output.
        """
        blobs = self.layers[0].blobs
        weights, bias = blobs[0].data, blobs[1].data if len(blobs) > 1 else None
        affines = [layer.channel_affine(top) for layer in self.layers[1:]]
        found = [affine for affine in affines if affine is not None]
        if not found:
            self._bias = None if bias is None else bias.copy()
            return weights
        factor, shift = np.ones(len(found[0][0])), np.zeros(len(found[0][0]))
        if bias is not None:
            shift += bias.reshape(-1)
        for a, b in found:
            factor, shift = factor * a, shift * a + b
        self._bias = shift.astype(weights.dtype)
        return weights * factor.reshape(rows).astype(weights.dtype)


class FoldedConvolution(Folded):
    """A `Convolution` of one bottom."""

    layers: tuple[Convolution, ...]

    @staticmethod
    def has_channels(layer: Convolution, top: Blob) -> bool:  # type: ignore[override]
        """Tell whether the channels are on axis 1."""
        return layer.channel_axis == 1

    @staticmethod
    def can_add(layer: Convolution) -> bool:  # type: ignore[override]
        """Tell whether the kernels are 1×1, with machine code."""
        return layer.can_add

    def hold(self, bottom: Blob, top: Blob) -> None:
        layer = self.layers[0]
        weights = self._fold(top, (-1, *(1,) * (layer.blobs[0].ndim - 1)))
        shapes = layer.plan_shapes(bottom, top)
        plan = bfloat16.convolution(*shapes, self._adds) if self._rounds else None
        self._plan = plan or layer.make_plan(bottom, top, alone=True, adds=self._adds)
        self._plan.hold(weights.reshape(layer.weights_shape()))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        layer = self.layers[0]
        self._plan.forward(
            layer.images(bottom[0]), None, self._bias, layer.images(top[0]), self._slope
        )


class FoldedInnerProduct(Folded):
    """An `InnerProduct`."""

    @staticmethod
    def has_channels(layer: Layer, top: Blob) -> bool:
        """Tell whether there is no axis before or behind the channels but the samples'."""
        return top.ndim == 2

    def hold(self, bottom: Blob, top: Blob) -> None:
        param = self.layers[0].param.inner_product_param
        self._weights: Any = self._fold(top, (1, -1) if param.transpose else (-1, 1))
        outputs = param.num_output
        samples = math.prod(top.shape) // outputs
        self._shapes = (samples, bottom.count // max(1, samples)), (samples, outputs)
        sizes = samples, outputs, self._shapes[0][1]
        self._plan = bfloat16.inner_product(*sizes, param.transpose) if self._rounds else None
        if self._plan is None:
            self._plan = InnerProductPlan(*sizes, param.transpose, bottom.dtype, alone=True)
        else:
            self._plan.hold(self._weights)
            self._weights = None

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = (blob.data.reshape(shape) for blob, shape in zip((bottom[0], top[0]), self._shapes))
        self._plan.forward(x, self._weights, self._bias, y, self._slope)


def kind_of(layer: Layer) -> type[Folded] | None:
    """Return the class for products of this layer, or None."""
    if layer.changes_weights or not layer.blobs or len(layer.param.bottom) != 1:
        return None
    # A subclass with a forward of its own computes something else.
    if isinstance(layer, Convolution) and type(layer).forward is Convolution.forward:
        return FoldedConvolution
    if isinstance(layer, InnerProduct) and type(layer).forward is InnerProduct.forward:
        return FoldedInnerProduct
    return None
