"""Layers without bottoms: Input, whose tops the caller fills, and Parameter, a learnt blob."""

from __future__ import annotations

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.parameters import make_parameters


@register("Input")
class Input(Layer):
    """Tops of given shapes, one shape for all or one for each, filled from outside."""

    bottoms = Arity(0, 0)
    tops = Arity(1, None)
    has_backward = False
    backward_needs_bottom = Need.NONE
    computes = False

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        shapes = [tuple(shape.dim) for shape in self.param.input_param.shape]
        if len(shapes) not in (0, 1, len(top)):
            raise self.error(
                f"needs one shape, or one for each of its {len(top)} tops, found {len(shapes)}"
            )
        for index, blob in enumerate(top):
            if shapes:
                blob.reshape(*shapes[index if len(shapes) > 1 else 0])

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Keep the shapes: the caller may have changed them."""

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Leave the tops as the caller filled them."""


@register("Parameter")
class Parameter(Layer):
    """A parameter of ``parameter_param { shape }`` as a top, which other layers may read.

    It begins with zeros, or as blob_filler says (happynear/caffe-windows).
    """

    bottoms = Arity(0, 0)
    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.parameter_param
        make_parameters(self, (tuple(param.shape.dim), param.blob_filler))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape(*self.blobs[0].shape)
        # Layers such as Split share the top's data from now on.
        top[0].share_data(self.blobs[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        # At each forward, because another layer's blob may have replaced the parameter.
        top[0].share_data(self.blobs[0])

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if self.param_propagate_down[0]:
            self.blobs[0].diff[...] += top[0].diff
