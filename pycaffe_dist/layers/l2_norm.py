"""Normalize: division by a norm, with or without a learnt scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.channel_affine import affine, gradient_sums, normalize_gradient
from pycaffe_dist.kernels.l2_norm import divide_by_norms, norms_gradient, scale_gradient
from pycaffe_dist.layers.base import Arity, Layer, register
from pycaffe_dist.layers.checking import axis_of, describe
from pycaffe_dist.layers.parameters import constant, make_parameters
from pycaffe_dist.layers.unit_length import UnitLength


@register("Normalize")
class Normalize(Layer):
    """x / sqrt(eps + Σx²), over channels or the whole image; a learnt scale in one of two forms.

    The form with a scale has one sum for each position without across_spatial, and one scale for
    all channels with channel_shared.  (weiliu89/caffe, ssd branch.)  As there, the bottom's
    gradient is exact only if all channels have the same scale.

    The form without a scale divides by the norm over the channels of each position, with
    normalize_type L1 by Σ|x| + eps; a second top gets the norms, whose gradient counts with bp_norm
    only; fix_gradient does not divide the gradient by the norm.  eps is 1e-6.  The tops have four
    axes.  (happynear/caffe-windows, on the CPU, whose GPU code has a smaller eps.)

    The form with a scale has norm_param; a layer with neither field and one top has this form,
    except in a net with other fields or layers of happynear/caffe-windows.
    """

    tops = Arity(1, 2)

    def _has_scale(self, top: list[Blob]) -> bool:
        has_norm, has_unit = (
            self.param.HasField(field) for field in ("norm_param", "normalize_param")
        )
        if has_norm and has_unit:
            raise self.error(
                "mixes two forks: norm_param of weiliu89/caffe and normalize_param of "
                "happynear/caffe-windows"
            )
        if has_norm and len(top) > 1:
            raise self.error("has one top with norm_param")
        return has_norm or (not has_unit and len(top) == 1)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._unit = None if self._has_scale(top) else UnitLength(self, self.param.normalize_param)
        if self._unit is not None:
            return
        param = self.param.norm_param
        self._channels = bottom[0].shape[axis_of(self, bottom, 1, "channel axis")]
        shape = () if param.channel_shared else (self._channels,)
        filler = param.scale_filler if param.HasField("scale_filler") else constant(1)
        make_parameters(self, (shape, filler))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self._unit is not None:
            axis_of(self, bottom, 1, "channel axis")
            self._unit.reshape(bottom, top)
            return
        if bottom[0].ndim < 2 or bottom[0].shape[1] != self._channels:
            raise self.error(
                f"has scales of {self._channels} channels, found bottom {describe(self, bottom, 0)}"
            )
        top[0].reshape_like(bottom[0])
        self._images, self._pixels = bottom[0].shape[0], bottom[0].count_of(2)
        rows = self._images * self._channels
        dtype = self.context.parameter_dtype
        if self.param.norm_param.across_spatial:
            # A row of pixels for each channel of each image.
            self._shape = 1, rows, self._pixels
            self._zero, self._factor, self._slope = (xp().zeros(rows, dtype) for _ in range(3))
            self._sums = xp().zeros(rows), xp().zeros(rows)
            self._inverse = xp().zeros((self._images, 1))
        else:
            self._shape = self._images, self._channels, self._pixels
            self._norms = xp().zeros((self._images, self._pixels), dtype)
            self._total = xp().zeros(self._channels)

    def _scale(self) -> Any:
        """Return a scale for each channel."""
        scale = self.blobs[0].data.reshape(-1)
        return xp().broadcast_to(scale, (self._channels,)).copy()

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self._unit is not None:
            self._unit.forward(bottom, top)
            return
        eps = self.param.norm_param.eps
        x, y = bottom[0].data.reshape(self._shape), top[0].data.reshape(self._shape)
        if not self.param.norm_param.across_spatial:
            divide_by_norms(x, self._scale(), eps, self._norms, y)
            return
        squares = self._dots(x, x).sum(axis=1, keepdims=True)
        self._inverse[...] = 1 / np.sqrt(squares + eps)
        self._factor.reshape(self._images, -1)[...] = self._inverse * self._scale()
        affine(x, y, self._zero, self._factor, self._zero)

    def _dots(self, x: Any, dy: Any) -> Any:
        """Return the sums of x·dy of each channel of each image."""
        gradient_sums(x, dy, self._zero, *self._sums)
        return self._sums[1].reshape(self._images, -1)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if self._unit is not None:
            if propagate_down[0]:
                self._unit.backward(top, bottom)
            return
        x, dy = bottom[0].data.reshape(self._shape), top[0].diff.reshape(self._shape)
        dx = bottom[0].diff.reshape(self._shape) if propagate_down[0] else None
        if self.param.norm_param.across_spatial:
            self._backward_whole(x, dy, dx)
            return
        if self.param_propagate_down[0]:
            scale_gradient(x, dy, self._norms, self._total)
            self._add(self._total)
        if dx is not None:
            norms_gradient(x, dy, self._scale(), self._norms, dx)

    def _backward_whole(self, x: Any, dy: Any, dx: Any) -> None:
        dots = self._dots(x, dy)
        if self.param_propagate_down[0]:
            self._add((dots * self._inverse).sum(axis=0))
        if dx is not None:
            means = dots.sum(axis=1, keepdims=True) * self._inverse**2
            self._slope.reshape(self._images, -1)[...] = means
            vectors = self._zero, self._factor, self._zero, self._slope
            normalize_gradient(x, dy, dx, *vectors)

    def _add(self, sums: Any) -> None:
        """Add the channels' sums of dy·x / norm to the scale's gradient."""
        diff = self.blobs[0].diff
        diff += sums.sum() if self.param.norm_param.channel_shared else sums
