"""BN, the batch normalization with scale and bias of the segmentation forks."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.normalization import RunningSums
from pycaffe_dist.layers.base import Arity, is_test, register
from pycaffe_dist.layers.channel_norm import ChannelNorm
from pycaffe_dist.layers.parameters import constant, make_parameters
from pycaffe_dist.schema import caffe_pb2

INFERENCE = caffe_pb2.BNParameter.INFERENCE
_SEGNET_FIELDS = ("scale_filler", "shift_filler", "bn_mode")
_SLOPE_FIELDS = ("slope_filler", "bias_filler", "momentum", "eps", "frozen")
# What caffe-segnet adds to variances.
SEGNET_EPS = 1e-9


@register("BN")
class BN(ChannelNorm):
    """slope·(x - mean) / sqrt(variance + eps) + bias for each channel, in two forks' forms.

    The slope form (hszhao/PSPNet, yjxiong/caffe) has four blobs: slope, bias, running mean and
    running variance, which replace the batch's in the TEST phase and with ``frozen``; frozen, slope
    and bias are not learnt.  The form of alexgkendall/caffe-segnet has two, scale and shift, always
    takes the batch's statistics, which tops 1 and 2 get (without a gradient), and with bn_mode
    INFERENCE none.  The fields tell the forms apart, else the blobs of a loaded model or the param
    entries, else it is the slope form.
    """

    tops = Arity(1, 3)
    own_scale = 0

    @property
    def only_kernels(self) -> bool:  # type: ignore[override]
        """The slope form: NumPy does a part of the other."""
        return not self._segnet

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.bn_param
        self._segnet = self._has_segnet_form(top)
        shape = 1, self.prepare(bottom), 1, 1
        if self._segnet:
            self.fixed = param.bn_mode == INFERENCE
            if self.fixed and len(top) > 1:
                raise self.error("has no statistics for tops 1 and 2 with bn_mode INFERENCE")
            make_parameters(self, (shape, param.scale_filler), (shape, param.shift_filler))
            return
        if len(top) > 1:
            raise self.error("has one top in the form with slope and bias")
        self.frozen = param.frozen
        self.fixed = param.frozen or is_test(self.phase)
        make_parameters(
            self,
            (shape, param.slope_filler),
            (shape, param.bias_filler),
            (shape, constant(0)),
            (shape, constant(1 if param.frozen else 0)),
        )
        while len(self.param.param) < len(self.blobs):
            self.param.param.add()
        for spec in self.param.param if param.frozen else self.param.param[2:]:
            spec.lr_mult = spec.decay_mult = 0

    def _has_segnet_form(self, top: list[Blob]) -> bool:
        param = self.param.bn_param
        segnet = [field for field in _SEGNET_FIELDS if param.HasField(field)]
        slope = [field for field in _SLOPE_FIELDS if param.HasField(field)]
        if segnet and slope:
            raise self.error(
                f"mixes fields of two forks: {', '.join(segnet)} of alexgkendall/caffe-segnet and "
                f"{', '.join(slope)} of hszhao/PSPNet"
            )
        if segnet or slope or len(top) > 1:
            return not slope
        return (len(self.blobs) or len(self.param.param)) == 2

    def statistics_blobs(self) -> list[Blob]:
        """Return the running mean and variance, which the slope form has."""
        return self.blobs[2:]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        for blob in top[1:]:
            blob.reshape(1, self.normalization.shape[1], 1, 1)

    def running(self, samples: int) -> tuple[RunningSums | None, float]:
        """Return the running sums, which segnet's form has not, and eps."""
        if self._segnet:
            return None, SEGNET_EPS
        means, variances = (blob.data.reshape(-1) for blob in self.statistics_blobs())
        keep = self.param.bn_param.momentum
        return RunningSums(means, variances, None, keep, 1 - keep, 1.0), self.param.bn_param.eps

    def recall(self, factor: np.ndarray | None = None) -> None:
        """Set the normalization from the running sums, or to change nothing in segnet's form."""
        if not self._segnet:
            super().recall(factor)
            return
        result = self.normalization.result
        result.scale.fill(1)  # the shift is always 0
        result.product[...] = 1 if factor is None else factor

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().forward(bottom, top)
        for blob, values in zip(top[1:], self.normalization.result):
            blob.data.reshape(-1)[...] = values
