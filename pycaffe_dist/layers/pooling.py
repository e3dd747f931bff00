"""Pooling and spatial pyramid pooling (SPP)."""

from __future__ import annotations

import weakref

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.pooling import (
    PoolingGeometry,
    average_pool_backward,
    average_pool_forward,
    max_pool_backward,
    max_pool_forward,
    stochastic_pool_forward,
    stochastic_pool_mean,
)
from pycaffe_dist.kernels.uniform import uniform
from pycaffe_dist.layers.base import Arity, Layer, Need, is_test, register
from pycaffe_dist.layers.checking import describe, output_of, require_axes
from pycaffe_dist.layers.random_key import RandomKey
from pycaffe_dist.schema import caffe_pb2

MAX = caffe_pb2.PoolingParameter.MAX
AVE = caffe_pb2.PoolingParameter.AVE
STOCHASTIC = caffe_pb2.PoolingParameter.STOCHASTIC


class Pool:
    """One pooling of (N, C, H, W) arrays: its method, its geometry, and the mask of maxima."""

    def __init__(self, method: int, geometry: PoolingGeometry, layer: Layer):
        self._method = method
        self._geometry = geometry
        self._layer: Layer = weakref.proxy(layer)  # which owns this object
        self._mask = xp().empty(0, np.int32)
        random: np.random.Generator | None = getattr(layer, "random", None)
        self._key = None if random is None else RandomKey(random)

    def _mask_for(self, y: np.ndarray) -> np.ndarray:
        if self._mask.dtype != np.int32 or self._mask.shape != y.shape:
            self._mask = xp().empty(y.shape, np.int32)
        return self._mask

    def forward(self, x: np.ndarray, y: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Set y; maxima are also stored in ``mask``, if given, as indices into their plane."""
        if self._method == AVE:
            average_pool_forward(x, y, self._geometry)
        elif self._method == MAX and mask is None and self._layer.context.forward_only:
            max_pool_forward(x, y, None, self._geometry)
        elif self._method == MAX:
            self._mask = self._mask_for(y) if mask is None else mask
            max_pool_forward(x, y, self._mask, self._geometry)
        elif is_test(self._layer.phase):
            stochastic_pool_mean(x, y, self._geometry)
        else:
            draws = xp().empty(y.shape, np.float64 if y.dtype == np.float64 else np.float32)
            assert self._key is not None
            self._key.draw()
            uniform(draws, self._key.array)
            stochastic_pool_forward(x, draws, y, self._mask_for(y), self._geometry)

    def backward(self, dy: np.ndarray, dx: np.ndarray) -> None:
        """Set dx from dy and the elements chosen in the last forward."""
        if self._method == AVE:
            average_pool_backward(dy, dx, self._geometry)
        elif self._method == MAX or not is_test(self._layer.phase):
            max_pool_backward(dy, self._mask, dx, self._geometry)
        else:
            raise self._layer.error("has no gradient for stochastic pooling in the TEST phase")


@register("Pooling")
class Pooling(Layer):
    """The maximum, average or a random element of each window; a second top gets MAX's indices."""

    tops = Arity(1, 2)
    backward_needs_bottom = Need.NONE

    @property
    def only_kernels(self) -> bool:  # type: ignore[override]
        """A random element needs a new key in every pass."""
        return self.param.pooling_param.pool != STOCHASTIC

    def need_of_top(self, top_index: int) -> Need:
        """The mask, if it is a top."""
        return Need.VALUE if top_index == 1 else Need.NONE

    def is_exact(self, top_index: int) -> bool:
        """16 bits do not hold all indices of a mask."""
        return top_index == 1

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.pooling_param
        self._global = param.global_pooling
        self._kernel = self._size_of_window(param)
        self._stride = self._pair(param, "stride", "stride")
        self._pad = self._pair(param, "pad", "pad")
        if 0 in self._stride:
            raise self.error(f"needs a stride of at least 1, found {self._stride}")
        if self._global and (self._stride != (1, 1) or self._pad != (0, 0)):
            raise self.error("takes no stride and no pad with global_pooling")
        if param.pool == STOCHASTIC and self._pad != (0, 0):
            raise self.error("supports pad for MAX and AVE only")
        if not self._global and any(p >= k for p, k in zip(self._pad, self._kernel)):
            raise self.error(f"needs a pad smaller than its kernel {self._kernel}: {self._pad}")
        self._ceil = self._rounds_up(param)
        if len(top) > 1 and param.pool != MAX:
            raise self.error("has a second top, the mask, for MAX only")
        if param.pool == STOCHASTIC:
            self.random = self.rng("windows")

    def _rounds_up(self, param: caffe_pb2.PoolingParameter) -> bool:
        up = param.round_mode == caffe_pb2.PoolingParameter.CEIL
        if not param.HasField("ceil_mode"):
            return up
        if param.HasField("round_mode") and param.ceil_mode != up:
            raise self.error(
                "has a ceil_mode and a round_mode that contradict each other; give one"
            )
        return param.ceil_mode

    def _size_of_window(self, param: caffe_pb2.PoolingParameter) -> tuple[int, int]:
        square = param.HasField("kernel_size")
        sides = [param.HasField("kernel_h"), param.HasField("kernel_w")]
        if self._global:
            if square or any(sides):
                raise self.error("takes no kernel size with global_pooling")
            return 0, 0
        # Caffe reads kernel_size and ignores one of the others beside it.
        if square == all(sides):
            raise self.error("needs either kernel_size or both kernel_h and kernel_w")
        kernel = (param.kernel_size,) * 2 if square else (param.kernel_h, param.kernel_w)
        if 0 in kernel:
            raise self.error(f"needs a kernel of at least 1, found {kernel}")
        return kernel

    def _pair(self, param: caffe_pb2.PoolingParameter, field: str, stem: str) -> tuple[int, int]:
        both = [param.HasField(f"{stem}_h"), param.HasField(f"{stem}_w")]
        if not any(both):
            return (getattr(param, field),) * 2
        if not all(both) or param.HasField(field):
            raise self.error(f"needs either {field} or both {stem}_h and {stem}_w")
        return getattr(param, f"{stem}_h"), getattr(param, f"{stem}_w")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_axes(self, bottom, 0, 4)
        param = self.param.pooling_param
        spatial = bottom[0].height, bottom[0].width
        geometry = self.geometry_for(spatial)
        output = output_of(self, bottom, geometry, spatial)
        for blob in top:
            blob.reshape(*bottom[0].shape[:2], *output)
        self._pool = Pool(param.pool, geometry, self)

    def geometry_for(self, spatial: tuple[int, int]) -> PoolingGeometry:
        """Return the windows for images of this height and width."""
        kernel = spatial if self._global else self._kernel
        return PoolingGeometry(kernel, self._stride, self._pad, self._ceil)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        mask = top[1].data if len(top) > 1 else None
        self._pool.forward(bottom[0].data, top[0].data, mask)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            self._pool.backward(top[0].diff, bottom[0].diff)


@register("SPP")
class SPP(Layer):
    """Pooling into 1, 2², 4², … bins, for any image size, joined to (N, C·bins).

    (He et al., Spatial Pyramid Pooling, 2014.)
    """

    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._levels = self.param.spp_param.pyramid_height
        if self._levels < 1:
            raise self.error("needs a pyramid_height of at least 1")
        if self.param.spp_param.pool == STOCHASTIC:
            self.random = self.rng("windows")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_axes(self, bottom, 0, 4)
        num, channels, height, width = bottom[0].shape
        if min(height, width) == 0:
            raise self.error(f"needs an image, found bottom {describe(self, bottom, 0)}")
        self._pools, self._outputs = [], []
        for level in range(self._levels):
            geometry = bins_of((height, width), 2**level)
            kernel, pad = geometry.kernel, geometry.pad
            if any(p >= k for p, k in zip(pad, kernel)):
                raise self.error(
                    f"cannot divide bottom {describe(self, bottom, 0)} into {2**level} by "
                    f"{2**level} bins: pad {pad} would not be smaller than kernel {kernel}"
                )
            output = self.new_blob(num, channels, *geometry.output_shape((height, width)))
            self._pools.append(Pool(self.param.spp_param.pool, geometry, self))
            self._outputs.append(output)
        if self._levels == 1:
            top[0].reshape(*self._outputs[0].shape)
        else:
            top[0].reshape(num, sum(output.count_of(1) for output in self._outputs))
        self._scratch = self.new_blob(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        y = top[0].data.reshape(top[0].shape[0], -1)
        start = 0
        for pool, output in zip(self._pools, self._outputs):
            pool.forward(bottom[0].data, output.data)
            stop = start + output.count_of(1)
            y[:, start:stop] = output.data.reshape(len(y), -1)
            start = stop

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        dy = top[0].diff.reshape(top[0].shape[0], -1)
        dx = bottom[0].diff
        dx.fill(0)
        start = 0
        for pool, output in zip(self._pools, self._outputs):
            stop = start + output.count_of(1)
            output.diff.reshape(len(dy), -1)[...] = dy[:, start:stop]
            pool.backward(output.diff, self._scratch.diff)
            dx += self._scratch.diff
            start = stop


def bins_of(spatial: tuple[int, int], bins: int) -> PoolingGeometry:
    """Return windows that divide an image's height and width each into ``bins``."""
    kernel_h, kernel_w = (-(-size // bins) for size in spatial)
    pads = zip((kernel_h, kernel_w), spatial)
    pad_h, pad_w = ((kernel * bins - size + 1) // 2 for kernel, size in pads)
    return PoolingGeometry((kernel_h, kernel_w), (kernel_h, kernel_w), (pad_h, pad_w))
