"""Division by a norm over channels without a scale: Normalize as happynear/caffe-windows has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import Layer
from pycaffe_dist.schema import caffe_pb2

# Added to sums of squares or magnitudes.
_EPS = 1e-6


class UnitLength:
    """The form of `Normalize` without a scale, for a layer that has it."""

    def __init__(self, layer: Layer, param: caffe_pb2.UnitLengthParameter):
        if param.normalize_type not in ("L1", "L2"):
            raise layer.error(f"needs normalize_type L1 or L2, found '{param.normalize_type}'")
        self._param = param
        self._squares = self._param.normalize_type == "L2"

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Set the tops' shapes, which have four axes at least."""
        shape = (*bottom[0].shape, *(1,) * (4 - bottom[0].ndim))
        top[0].reshape(*shape)
        if len(top) > 1:
            top[1].reshape(shape[0], 1, *shape[2:])
        self._shape = *shape[:2], bottom[0].count_of(2)

    def _norms(self, x: Any) -> Any:
        if self._squares:
            return np.sqrt(np.einsum("ncp,ncp->np", x, x)[:, None] + x.dtype.type(_EPS))
        return np.absolute(x).sum(axis=1, keepdims=True) + x.dtype.type(_EPS)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Set the top, and the norms for a second top."""
        x = bottom[0].data.reshape(self._shape)
        norms = self._norms(x)
        np.divide(x, norms, out=top[0].data.reshape(self._shape))
        if len(top) > 1:
            top[1].data[...] = norms.reshape(top[1].shape)

    def backward(self, top: list[Blob], bottom: list[Blob]) -> None:
        """Set the bottom's diff."""
        x, dy = bottom[0].data.reshape(self._shape), top[0].diff.reshape(self._shape)
        dx, norms = bottom[0].diff.reshape(self._shape), self._norms(x)
        y = x / norms
        of_norm = y if self._squares else np.sign(x)
        along = np.einsum("ncp,ncp->np", y, dy)[:, None]
        np.subtract(dy, of_norm * along, out=dx)
        if not self._param.fix_gradient:
            dx /= norms
        if self._param.bp_norm and len(top) > 1:
            dx += of_norm * top[1].diff.reshape(norms.shape)
