"""InnerProduct (fully connected) and Embed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.bias_add import bias_gradient
from pycaffe_dist.kernels.inner_product import InnerProduct as InnerProductPlan
from pycaffe_dist.kernels.reduction import SQUARE, reduce_rows
from pycaffe_dist.kernels.scatter import gather, scatter_add
from pycaffe_dist.layers.base import Layer, register
from pycaffe_dist.layers.checking import (
    axis_of,
    checked_indices,
    describe,
    require_no_gradient,
)
from pycaffe_dist.layers.connectivity import disconnect
from pycaffe_dist.layers.parameters import Spec, make_parameters
from pycaffe_dist.schema import caffe_pb2

# Added to the squared lengths that weights are divided by, as in happynear/caffe-windows.
_LENGTH_EPS = 1e-6


def make_unit_length(weights: Any, eps: float = _LENGTH_EPS) -> None:
    """Divide each row of a matrix by sqrt(its squared length + eps)."""
    squares = xp().empty(len(weights), weights.dtype)
    reduce_rows(weights, SQUARE, 1.0, squares)
    weights /= np.sqrt(squares + eps)[:, None]


class Product(Layer):
    """The base of inner products: y = x·Wᵀ + b, of the options that ``read_options`` returns."""

    overwrites_gradients = True
    _plan: InnerProductPlan

    def read_options(self) -> caffe_pb2.InnerProductParameter:
        """Return the options of the product."""
        raise NotImplementedError

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.options = param = self.read_options()
        if param.num_output == 0:
            raise self.error("needs num_output of at least 1")
        if param.normalize and param.transpose:
            raise self.error("cannot normalize transposed weights")
        self.changes_weights = self.changes_weights or param.normalize
        axis = axis_of(self, bottom, param.axis)
        self._inputs = math.prod(bottom[0].shape[axis:])
        shape = (param.num_output, self._inputs)
        specs: list[Spec] = [(shape[::-1] if param.transpose else shape, param.weight_filler)]
        if param.bias_term:
            specs.append(((param.num_output,), param.bias_filler))
        make_parameters(self, *specs)
        self._samples = -1
        self._last: tuple[np.ndarray, np.ndarray] | None = None

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.options
        axis = axis_of(self, bottom, param.axis)
        inputs = bottom[0].count_of(axis)
        if inputs != self._inputs:
            raise self.error(
                f"has weights for {self._inputs} inputs, found {inputs} in bottom "
                f"{describe(self, bottom, 0)} from axis {axis} on"
            )
        top[0].reshape(*bottom[0].shape[:axis], param.num_output)
        samples = bottom[0].count_of(0, axis)
        if samples != self._samples:
            self._samples = samples
            self._last = None
            if not samples:  # the net leaves out a layer with nothing to compute
                dtype = self.context.dtype
                self._last = np.empty((0, inputs), dtype), np.empty((0, param.num_output), dtype)
            self._plan = InnerProductPlan(
                samples, param.num_output, inputs, param.transpose, self.context.dtype
            )

    def _matrix(self, array: np.ndarray, columns: int) -> np.ndarray:
        shape = self._samples, columns
        return array if array.shape == shape else array.reshape(shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.options.normalize:
            make_unit_length(self.blobs[0].data)
        bias = self.blobs[1].data if len(self.blobs) > 1 else None
        x = self._matrix(bottom[0].data, self._inputs)
        y = self._matrix(top[0].data, self.options.num_output)
        self._plan.forward(x, self.blobs[0].data, bias, y)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        x = self._matrix(bottom[0].data, self._inputs)
        dy = self._matrix(top[0].diff, self.options.num_output)
        self._last = x, dy
        if self.param_propagate_down[0] and 0 not in self.factors_only:
            self._plan.backward_weights(x, dy, self.blobs[0].diff, 0 not in self.overwritten)
            disconnect(self)
        if len(self.blobs) > 1 and self.param_propagate_down[1]:
            bias_gradient(dy, self.blobs[1].diff, 1 not in self.overwritten)
        if propagate_down[0]:
            dx = self._matrix(bottom[0].diff, self._inputs)
            self._plan.backward_data(dy, self.blobs[0].data, dx)

    def gradient_factors(self, index: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (dy, x) of the last backward, or (x, dy) if transposed, for the weights.

        They are views of the blobs, valid until the next forward.  None if some weights stay 0.
        """
        if index != 0 or self._last is None or not self._all_weights_train:
            return None
        return self._last if self.options.transpose else self._last[::-1]

    def factor_rows(self, index: int) -> int:
        """Return the number of samples, for the weights unless some stay 0."""
        return self._samples if index == 0 and self._all_weights_train else 0

    @property
    def _all_weights_train(self) -> bool:
        return self.param.connectivity_mode == self.param.CONNECTED


@register("InnerProduct")
class InnerProduct(Product):
    """y = x·Wᵀ + b with x flattened from ``axis`` on; W is (num_output, inputs), or transposed.

    With normalize, forward divides each output's weights by their length first, and the gradient
    is that of the product alone, as in happynear/caffe-windows (there on the CPU).
    """

    @property
    def only_kernels(self) -> bool:  # type: ignore[override]
        """Unless NumPy changes weights or gradients."""
        return not self.options.normalize and self._all_weights_train

    def read_options(self) -> caffe_pb2.InnerProductParameter:
        """Return the options of the prototxt."""
        return self.param.inner_product_param


@register("Embed")
class Embed(Layer):
    """y[…] = W[x[…]] + b: replaces each index by its row of W (input_dim, num_output)."""

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.embed_param
        if param.num_output == 0 or param.input_dim == 0:
            raise self.error(
                f"needs num_output and input_dim of at least 1, "
                f"found {param.num_output} and {param.input_dim}"
            )
        specs: list[Spec] = [((param.input_dim, param.num_output), param.weight_filler)]
        if param.bias_term:
            specs.append(((param.num_output,), param.bias_filler))
        make_parameters(self, *specs)

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Indices have no gradient."""
        return False

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape(*bottom[0].shape, self.param.embed_param.num_output)

    def _indices(self, bottom: list[Blob]) -> np.ndarray:
        rows, where = self.blobs[0].shape[0], describe(self, bottom, 0)

        def error(index: int, value: float) -> Exception:
            return self.error(
                f"needs whole numbers from 0 to {rows - 1}, found {value:g} as element {index} of "
                f"bottom {where}"
            )

        return checked_indices(bottom[0].data.reshape(-1), rows, True, error)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        y = top[0].data.reshape(-1, top[0].shape[-1])
        gather(self.blobs[0].data, self._indices(bottom), y)
        if len(self.blobs) > 1:
            y += self.blobs[1].data

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 0)
        dy = top[0].diff.reshape(-1, top[0].shape[-1])
        if self.param_propagate_down[0]:
            scatter_add(dy, self._indices(bottom), self.blobs[0].diff)
        if len(self.blobs) > 1 and self.param_propagate_down[1]:
            bias_gradient(dy, self.blobs[1].diff)
