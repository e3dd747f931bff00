"""ROIPooling, PSROIPooling and ROIAlign: values of a map in boxes (regions of interest)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.roi_pooling import (
    roi_average_backward,
    roi_average_forward,
    roi_max_backward,
    roi_max_forward,
    roi_sample_backward,
    roi_sample_forward,
)
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import (
    checked_indices,
    describe,
    require_axes,
    require_boxes,
)
from pycaffe_dist.schema import caffe_pb2

# Boxes of less than this size, in cells, are so large for PSROIPooling.
SMALLEST_SIZE = 0.1


class BoxPooling(Layer):
    """The base of layers with a map (N, C, H, W) and boxes (R, 5), rows of image, x1, y1, x2, y2.

    Corners are pixels of the input image; the map's cells are 1/spatial_scale pixels wide.
    """

    bottoms = Arity(2, 2)
    backward_needs_bottom = Need.NONE
    scale: float
    size: tuple[int, int]  # of the result: rows, columns
    # Tables for the kernels, of the last forward.
    _image: np.ndarray
    _tables: tuple[np.ndarray, np.ndarray]

    def depth(self, bottom: list[Blob]) -> int:
        """Return the number of channels of the result."""
        return bottom[0].shape[1]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_axes(self, bottom, 0, 4)
        require_boxes(self, bottom, 1)
        top[0].reshape(bottom[1].shape[0], self.depth(bottom), *self.size)

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Only the map has a gradient."""
        return bottom_index == 0

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        # Nets for Caffe's forks ask for the gradient of boxes that a Python layer makes.
        if propagate_down[1]:
            bottom[1].diff.fill(0)

    def tables(
        self, boxes: np.ndarray, cells: np.ndarray, count: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the kernel's two tables (R, 2, P) of boxes (R, 4).

        ``cells`` (2, 1) has the map's width and height, ``count`` (2, 1) the result's; P is the
        larger of these.
        """
        raise NotImplementedError

    def _find_boxes(self, bottom: list[Blob]) -> None:
        rows = bottom[1].data.reshape(-1, 5).astype(self.context.parameter_dtype, copy=False)
        # For corners that are not finite, NaN: no number of an image.
        images = np.where(np.isfinite(rows).all(axis=1), rows[:, 0], np.nan)

        def wrong(index: int, value: float) -> Exception:
            return self.error(
                f"box {index} of bottom {describe(self, bottom, 1)} needs finite corners and an "
                f"image from 0 to {bottom[0].shape[0] - 1}, found image {value:g}"
            )

        self._image = checked_indices(images, bottom[0].shape[0], False, wrong)
        kind = rows.dtype.type
        cells = xp().array([[bottom[0].shape[3]], [bottom[0].shape[2]]], kind)
        count = xp().array([[self.size[1]], [self.size[0]]], kind)
        self._tables = self.tables(rows[:, 1:], cells, count)

    def _steps(self, array: np.ndarray) -> np.ndarray:
        """Return 0, 1, … for the longer side of the result, of the type of ``array``."""
        return xp().arange(max(self.size)).astype(array.dtype)


def rounded(x: np.ndarray) -> np.ndarray:
    """Round to the nearest whole number, halves away from zero, as C does."""
    return np.where(x < 0, np.ceil(x - 0.5), np.floor(x + 0.5))


def _bins(begin: np.ndarray, end: np.ndarray, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Clip the borders of bins to the map; tables of whole numbers."""
    clipped = np.clip(begin, 0, cells), np.clip(end, 0, cells)
    return clipped[0].astype(np.int32), clipped[1].astype(np.int32)


def size_of(
    layer: Layer, param: caffe_pb2.ROIPoolingParameter | caffe_pb2.ROIWarpingParameter
) -> tuple[int, int]:
    if not param.pooled_h or not param.pooled_w:
        raise layer.error(
            "needs pooled_h and pooled_w of at least 1, found "
            f"{param.pooled_h} and {param.pooled_w}"
        )
    return param.pooled_h, param.pooled_w


@register("ROIPooling")
class ROIPooling(BoxPooling):
    """The maximum of each of pooled_h × pooled_w bins of a box (rbgirshick/caffe-fast-rcnn).

    Scaled corners are rounded, and include the last cell; neighbouring bins may share cells.  A bin
    outside of the map gives 0.
    """

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.roi_pooling_param
        self.size, self.scale = size_of(self, param), param.spatial_scale
        self._mask = xp().empty(0, np.int32)

    def tables(self, boxes: Any, cells: Any, count: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the first cell of each bin, and the cell after its last."""
        corners = rounded(boxes * boxes.dtype.type(self.scale))[:, :, None]
        low, high = corners[:, :2], corners[:, 2:]
        step = np.maximum(high - low + 1, 1) / count
        steps = self._steps(boxes)
        return _bins(np.floor(steps * step) + low, np.ceil((steps + 1) * step) + low, cells)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._find_boxes(bottom)
        if self._mask.shape != top[0].shape:
            self._mask = xp().empty(top[0].shape, np.int32)
        roi_max_forward(bottom[0].data, self._image, *self._tables, top[0].data, self._mask)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        super().backward(top, propagate_down, bottom)
        if propagate_down[0]:
            args = self._mask, self._image, *self._tables, bottom[0].diff
            roi_max_backward(top[0].diff, *args)


@register("PSROIPooling")
class PSROIPooling(BoxPooling):
    """The mean of each bin of a box, each bin from its own channel (daijifeng001/caffe-rfcn).

    Bin (p, q) of output channel d is a mean over channel (d·group_size + p)·group_size + q.
    Corners are rounded, and then scaled.  A bin outside of the map gives 0.
    """

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.psroi_pooling_param
        if param.output_dim < 1 or param.group_size < 1:
            raise self.error(
                f"needs output_dim and group_size of at least 1, found {param.output_dim} and "
                f"{param.group_size}"
            )
        self.size, self.scale = (param.group_size,) * 2, param.spatial_scale

    def depth(self, bottom: list[Blob]) -> int:
        """Return output_dim; raises LayerError unless the map's channels fit."""
        param = self.param.psroi_pooling_param
        wanted = param.output_dim * param.group_size**2
        if bottom[0].shape[1] != wanted:
            raise self.error(
                f"needs output_dim·group_size² = {wanted} channels, found bottom "
                f"{describe(self, bottom, 0)}"
            )
        return param.output_dim

    def tables(self, boxes: Any, cells: Any, count: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the first cell of each bin, and the cell after its last."""
        scale, corners = boxes.dtype.type(self.scale), rounded(boxes)[:, :, None]
        low, high = corners[:, :2] * scale, (corners[:, 2:] + 1) * scale
        step = np.maximum(high - low, boxes.dtype.type(SMALLEST_SIZE)) / count
        steps = self._steps(boxes)
        return _bins(np.floor(steps * step + low), np.ceil((steps + 1) * step + low), cells)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._find_boxes(bottom)
        roi_average_forward(bottom[0].data, self._image, *self._tables, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        super().backward(top, propagate_down, bottom)
        if propagate_down[0]:
            roi_average_backward(top[0].diff, self._image, *self._tables, bottom[0].diff)


@register("ROIAlign")
class ROIAlign(BoxPooling):
    """The map, interpolated at (pooled_h + 1) × (pooled_w + 1) points of a box (zhaoweicai/mscnn).

    The points include the borders of the box, which grows by pad_ratio of its size on each side.
    Points more than half a cell outside of the map give 0, as does a box without a size.
    """

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.roi_pooling_param
        rows, columns = size_of(self, param)
        self.size, self.scale = (rows + 1, columns + 1), param.spatial_scale

    def tables(self, boxes: Any, cells: Any, count: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the cell before each point, and the weight of the next cell."""
        param, kind = self.param.roi_pooling_param, boxes.dtype.type
        low, high = boxes[:, :2, None], boxes[:, 2:, None]
        pad = (high - low + 1) * kind(param.pad_ratio)
        start = (low - pad) * kind(self.scale) - kind(0.5)
        size = (high + pad) * kind(self.scale) - kind(0.5) - start
        point = start + self._steps(boxes) * (size / (count - 1))
        outside = (point < -0.5) | (point > cells - kind(0.5))
        outside |= (size <= 0).any(axis=1, keepdims=True)
        point = np.clip(point, 0, cells - 1)
        cell = np.floor(point)
        part = point - cell
        return np.where(outside, -1, cell).astype(np.int32), part

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._find_boxes(bottom)
        roi_sample_forward(bottom[0].data, self._image, *self._tables, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        super().backward(top, propagate_down, bottom)
        if propagate_down[0]:
            low, part = self._tables
            roi_sample_backward(top[0].diff, self._image, low, 1 - part, part, bottom[0].diff)
