"""What losses and accuracies of maps with a field in every cell share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels import dry_run
from pycaffe_dist.layers.base import Layer
from pycaffe_dist.layers.checking import describe, require_axes


def check_maps(layer: Layer, bottom: list[Blob], channels: Sequence[int], fields: int = 1) -> None:
    """Raise LayerError unless the bottoms are maps of one size with such numbers of channels."""
    for index, wanted in enumerate(channels):
        require_axes(layer, bottom, index, 4)
        number, _, *size = bottom[0].shape
        if bottom[index].shape != (number, wanted, *size):
            raise layer.error(
                f"needs maps of the first bottom's size with {wanted} channels, found bottom "
                f"{describe(layer, bottom, index)}"
            )
    if bottom[0].shape[0] % fields:
        raise layer.error(
            f"needs a multiple of {fields} maps, one for each field, found bottom "
            f"{describe(layer, bottom, 0)}"
        )


class FieldLabels:
    """The labels in a bottom (M, 6, H, W) of cells whose fields (K, 2) repeat, M being N·K.

    ``label`` and ``overlap`` are (M, cells), ``boxes`` (M, 4, cells): centre's x and y, width and
    height of objects.  ``centre`` (2, cells) has the cells' centres, ``size`` (M, 2, 1) the fields'
    widths and heights.  ``ignored`` marks ignore_label.  With ``param.objectness`` all objects are
    of class 1.  Raises LayerError for a label that is no class.
    """

    def __init__(
        self,
        layer: Layer,
        bottom: list[Blob],
        index: int,
        fields: np.ndarray,
        stride: int,
        param: Any,
    ):
        values = bottom[index].data.reshape(*bottom[index].shape[:2], bottom[index].count_of(2))
        height, width = bottom[index].shape[2:]
        self.boxes, self.overlap = values[:, 1:5], values[:, 5]
        raw = values[:, 0]
        ignores = layer.param.loss_param.HasField("ignore_label")
        wrong = ~((raw >= 0) & (raw < (np.inf if param.objectness else param.cls_num)))
        self.ignored = np.zeros(raw.shape, bool)
        if ignores:
            self.ignored = raw == layer.param.loss_param.ignore_label
        if (wrong & ~self.ignored).any() and dry_run.active() is None:
            found = raw[wrong & ~self.ignored][0]
            raise layer.error(
                f"label {found:g} in bottom {describe(layer, bottom, index)} is none of the "
                f"{param.cls_num} classes (0 to {param.cls_num - 1})"
            )
        self.label = np.where(self.ignored, -1, np.where(wrong, 0, raw)).astype(np.int64)
        if param.objectness:
            self.label = np.minimum(self.label, 1)
        rows, columns = np.divmod(np.arange(height * width), max(1, width))
        self.centre = (np.stack([columns, rows]) + 0.5) * stride
        self.size = np.tile(fields, (len(raw) // len(fields), 1))[:, :, None].astype(values.dtype)


def encoded_fields(
    labels: FieldLabels, mean: np.ndarray, std: np.ndarray, least: float
) -> np.ndarray:
    """Return the moves (M, 4, cells) that make objects of fields; sides are at least ``least``."""
    shift = (labels.boxes[:, :2] - labels.centre) / labels.size
    growth = np.log(np.maximum(labels.boxes[:, 2:], least) / labels.size)
    moves = np.concatenate([shift, growth], axis=1)
    return (moves - mean[:, None]) / std[:, None]


def bounds(
    growth: float, share: float, mean: np.ndarray, std: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest moves (4, 1), normalized.

    A field's side changes by at most the factor ``growth``, its centre by 1 / ``share`` sides.
    Like the forks, x and y have one mean and one deviation, and so have width and height.
    """
    most = np.repeat([1 / share, np.log(growth)], 2)
    means = np.repeat(mean.reshape(2, 2).mean(axis=1), 2)
    stds = np.repeat(np.sqrt(std.reshape(2, 2).prod(axis=1)), 2)
    low, high = ((limit - means) / stds for limit in (-most, most))
    return low[:, None].astype(mean.dtype), high[:, None].astype(mean.dtype)
