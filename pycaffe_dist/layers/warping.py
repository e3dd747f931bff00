"""Warping: a map moved by a flow."""

from __future__ import annotations

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.warping import warp, warp_flow_gradient, warp_map_gradient
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import mismatch, require_axes


@register("Warping")
class Warping(Layer):
    """The map (N, C, H, W) at each point plus the flow (N, 2, H, W), right and down, interpolated.

    Cells outside of the map are those at its border.  The fork, lxx1991/caffe_mpi, has no CPU code;
    here the layer works on the host.
    """

    host_only = True
    bottoms = Arity(2, 2)
    backward_needs_bottom = Need.VALUE

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_axes(self, bottom, 0, 4)
        num, _, *size = bottom[0].shape
        if bottom[1].shape != (num, 2, *size):
            raise mismatch(self, bottom, 0, 1, "need the same shape but for 2 channels of flow")
        top[0].reshape_like(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        warp(bottom[0].data, bottom[1].data, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        flow = bottom[1].data
        if propagate_down[0]:
            warp_map_gradient(top[0].diff, flow, bottom[0].diff)
        if propagate_down[1]:
            warp_flow_gradient(top[0].diff, bottom[0].data, flow, bottom[1].diff)
