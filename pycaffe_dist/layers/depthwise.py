"""The names of depthwise convolutions: ConvolutionDepthwise and DepthwiseConvolution."""

from __future__ import annotations

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import register
from pycaffe_dist.layers.checking import axis_of
from pycaffe_dist.layers.convolution import Convolution


@register("DepthwiseConvolution")
class DepthwiseConvolution(Convolution):
    """Convolution with ``group``, under the name that eric612/MobileNet-YOLO gives it."""


@register("ConvolutionDepthwise")
class ConvolutionDepthwise(Convolution):
    """Convolves each channel with its own kernel, as in farmingyard/caffe-mobilenet.

    The weights are (channels, 1, *kernel).  As in the fork, ``num_output`` and ``group`` are not
    read: both are the number of channels.
    """

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        given, self.param = self.param, type(self.param)()
        self.param.CopyFrom(given)
        param = self.param.convolution_param
        param.num_output = param.group = bottom[0].shape[axis_of(self, bottom, param.axis)]
        super().setup(bottom, top)
