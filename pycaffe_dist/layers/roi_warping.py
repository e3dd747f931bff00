"""ROIWarping, MaskResize and MaskPooling: boxes and their masks (daijifeng001/caffe-mnc)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.roi_pooling import (
    roi_sample_backward,
    roi_sample_forward,
    roi_sample_slopes,
)
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import mismatch, require_axes
from pycaffe_dist.layers.roi_pooling import BoxPooling, rounded, size_of


def _samples(point: Any, cells: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the cell before each point, and the weight of the next cell.

    A point more than half a cell outside of ``cells`` has the cell -1.
    """
    kind = point.dtype.type
    outside = (point < -0.5) | (point > cells - kind(0.5))
    point = np.clip(point, 0, cells - 1)
    cell = np.floor(point)
    return np.where(outside, -1, cell).astype(np.int32), point - cell


@register("ROIWarping")
class ROIWarping(BoxPooling):
    """The map, interpolated at pooled_h × pooled_w points of a box (daijifeng001/caffe-mnc).

    Point p of P lies at p/P of the box, whose scaled corners are rounded; points more than half a
    cell outside of the map give 0.  As in the fork, a cell of the map gets its gradient from the
    points that would reach it in a box one cell larger, which leaves out some.  The corners have a
    gradient, too, if it is asked for: as if they were not rounded, and the box one cell larger.
    """

    backward_needs_bottom = Need.VALUE  # for the gradient of the corners

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.roi_warping_param
        self.size, self.scale = size_of(self, param), param.spatial_scale

    def tables(self, boxes: Any, cells: Any, count: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the cell before each point, and the weight of the next cell."""
        corners = rounded(boxes * boxes.dtype.type(self.scale))[:, :, None]
        self._low, self._high, self._count = corners[:, :2], corners[:, 2:], count
        step = np.maximum(self._high - self._low, 0) / count
        return _samples(self._low + self._steps(boxes) * step, cells)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._find_boxes(bottom)
        roi_sample_forward(bottom[0].data, self._image, *self._tables, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        cell, part = self._tables
        larger = np.maximum(self._high - self._low + 1, 1)
        if propagate_down[0]:
            near, far = (
                w * self._reached(cell + i, larger) for i, w in enumerate((1 - part, part))
            )
            roi_sample_backward(top[0].diff, self._image, cell, near, far, bottom[0].diff)
        if propagate_down[1]:
            share = (cell + part - self._low) / larger
            slopes = xp().empty((*top[0].shape[:2], 4), part.dtype)
            roi_sample_slopes(bottom[0].data, self._image, cell, part, share, top[0].diff, slopes)
            gradient = bottom[1].diff.reshape(-1, 5)
            gradient[:, 0] = 0
            gradient[:, 1:] = slopes.sum(axis=1) * part.dtype.type(self.scale)

    def _reached(self, cell: Any, larger: Any) -> Any:
        """Tell which points the fork's gradient of ``cell`` counts."""
        from_low, step = cell - self._low, larger / self._count
        first, end = np.floor((from_low - 1) / step - 1), np.ceil((from_low + 1) / step)
        point = self._steps(step)
        inside = (cell >= self._low) & (cell <= self._high)
        return inside & (point >= first) & (point < end)


@register("MaskResize")
class MaskResize(Layer):
    """Bilinear samples of masks at output_height × output_width points (daijifeng001/caffe-mnc).

    Point o lies at o times the ratio of the sizes; the last points of an enlarged mask, more than
    half a pixel behind its last one, give 0.  As in the fork, a pixel of an enlarged mask gets the
    gradient of two points per axis at most.
    """

    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.mask_resize_param
        if not param.output_height or not param.output_width:
            raise self.error(
                "needs output_height and output_width of at least 1, found "
                f"{param.output_height} and {param.output_width}"
            )
        self._size = param.output_height, param.output_width

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_axes(self, bottom, 0, 4)
        num, channels, height, width = bottom[0].shape
        top[0].reshape(num, channels, *self._size)
        kind = self.context.parameter_dtype
        cells = np.array([[width], [height]], kind)
        ratio = cells / np.array([[self._size[1]], [self._size[0]]], kind)
        points = np.arange(max(self._size)).astype(kind)
        cell, part = _samples(points * ratio, cells)
        counted = [np.isin(points - np.floor((cell + i) / ratio), (0, 1)) for i in (0, 1)]
        tables = cell, part, (1 - part) * counted[0], part * counted[1]
        self._tables = [xp().asarray(np.repeat(t[None], num, axis=0)) for t in tables]
        self._image = xp().arange(num)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        cell, part = self._tables[:2]
        roi_sample_forward(bottom[0].data, self._image, cell, part, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            cell, _, near, far = self._tables
            roi_sample_backward(top[0].diff, self._image, cell, near, far, bottom[0].diff)


@register("MaskPooling")
class MaskPooling(Layer):
    """Maps (N, C, H, W) times their masks (N, 1, H, W) (daijifeng001/caffe-mnc)."""

    bottoms = Arity(2, 2)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_axes(self, bottom, 0, 4)
        num, _, *size = bottom[0].shape
        if bottom[1].shape != (num, 1, *size):
            raise mismatch(self, bottom, 0, 1, "need the same shape but for 1 channel of masks")
        top[0].reshape_like(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        np.multiply(bottom[0].data, bottom[1].data, out=top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            np.multiply(top[0].diff, bottom[1].data, out=bottom[0].diff)
        if propagate_down[1]:
            products = top[0].diff * bottom[0].data
            bottom[1].diff[...] = products.sum(axis=1, keepdims=True)
