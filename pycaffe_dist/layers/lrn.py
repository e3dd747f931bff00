"""Local response normalization."""

from __future__ import annotations

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.lrn import (
    lrn_across_backward,
    lrn_across_forward,
    lrn_within_backward,
    lrn_within_forward,
)
from pycaffe_dist.layers.base import Layer, Need, register
from pycaffe_dist.layers.checking import require_axes
from pycaffe_dist.schema import caffe_pb2


@register("LRN")
class LRN(Layer):
    """x · (k + alpha/n · sum of n squares)^-beta, over n channels or an n×n window.

    As in Caffe, within a channel n is the window's area and k is 1.  (Krizhevsky et al., 2012.)
    """

    backward_needs_top = Need.PRODUCT
    only_kernels = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.lrn_param
        if param.local_size % 2 == 0:
            raise self.error(f"needs an odd local_size, found {param.local_size}")
        self._within = param.norm_region == caffe_pb2.LRNParameter.WITHIN_CHANNEL
        self._options = param.local_size, param.alpha, param.beta
        self._scale = self.new_blob()

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_axes(self, bottom, 0, 4)
        top[0].reshape_like(bottom[0])
        self._scale.reshape_like(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        arrays = bottom[0].data, top[0].data, self._scale.data
        if self._within:
            lrn_within_forward(*arrays, *self._options)
        else:
            lrn_across_forward(*arrays, *self._options, self.param.lrn_param.k)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        arrays = bottom[0].data, top[0].data, self._scale.data, top[0].diff, bottom[0].diff
        if self._within:
            lrn_within_backward(*arrays, *self._options)
        else:
            lrn_across_backward(*arrays, *self._options)
