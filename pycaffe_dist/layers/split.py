"""Split, Gather and Silence: one blob for several readers, the same blobs, and none."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.eltwise import weighted_sum
from pycaffe_dist.layers.base import Arity, Layer, Need, register


@register("Split")
class Split(Layer):
    """The bottom under several names; adds their gradients.  Inserted by the net."""

    tops = Arity(1, None)
    backward_needs_bottom = Need.NONE
    backward_in_place = True
    computes = False
    only_kernels = True

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for blob in top:
            if blob is bottom[0]:
                raise self.error("cannot work in place")
            blob.reshape_like(bottom[0])
            blob.share_data(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Do nothing: the tops share the bottom's data."""

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            weighted_sum(bottom[0].diff, [blob.diff for blob in top], [1.0] * len(top))


@register("Gather")
class Gather(Layer):
    """Its bottoms under other names (yjxiong/caffe).

    There the next layers get the samples of all ranks; here each rank's layers have its own, and
    the mean of the ranks' gradients is the same.
    """

    bottoms = Arity(1, None)
    tops = Arity(1, None)
    equal_bottoms_and_tops = True
    backward_needs_bottom = Need.NONE

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for source, blob in zip(bottom, top):
            if blob is source:
                raise self.error("cannot work in place")
            blob.reshape_like(source)
            blob.share_data(source)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Do nothing: the tops share the bottoms' data."""

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        for source, blob, wanted in zip(bottom, top, propagate_down):
            if wanted:
                np.copyto(source.diff, blob.diff)


@register("Silence")
class Silence(Layer):
    """Reads blobs that no other layer reads; their gradient is zero."""

    bottoms = Arity(1, None)
    tops = Arity(0, 0)
    backward_needs_bottom = Need.NONE

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Do nothing: there is no top."""

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Do nothing: there is no top."""

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        for blob, wanted in zip(bottom, propagate_down):
            if wanted:
                blob.diff.fill(0)
