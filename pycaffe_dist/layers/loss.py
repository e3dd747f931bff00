"""What loss layers share: the scalar top, the loss weight, the normalizer, and label checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import Arity, Layer
from pycaffe_dist.layers.checking import describe, mismatch, require_no_gradient, require_same_batch
from pycaffe_dist.schema import caffe_pb2

FULL = caffe_pb2.LossParameter.FULL
VALID = caffe_pb2.LossParameter.VALID
BATCH_SIZE = caffe_pb2.LossParameter.BATCH_SIZE


class Loss(Layer):
    """The base of losses: predictions and labels in, a scalar out.

    ``loss`` returns the value; ``gradient`` sets the diff of bottom[0] times ``weight``, the top's
    loss weight.
    """

    bottoms = Arity(2, 2)
    is_loss = True

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        """Return the loss."""
        raise NotImplementedError

    def gradient(self, bottom: list[Blob], weight: float) -> None:
        """Set the diff of bottom[0]."""
        raise NotImplementedError

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_same_batch(self, bottom, 0, 1)
        top[0].reshape()

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].data[...] = self.loss(bottom, top)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, *range(1, len(bottom)))
        if propagate_down[0]:
            self.gradient(bottom, self.weight_of(top))

    def weight_of(self, top: list[Blob]) -> float:
        """Return the loss weight, which the net has written to the top's diff on the host."""
        with device.use(device.HOST):
            return float(top[0].read_diff())

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Only predictions have a gradient."""
        return bottom_index == 0


def normalization_of(param: Any, default: int = VALID) -> int:
    """Return the mode of a ``LossParameter``; the older ``normalize`` counts if it stands alone."""
    if param.HasField("normalization"):
        return param.normalization
    if param.HasField("normalize"):
        return VALID if param.normalize else BATCH_SIZE
    return default


def normalizer(mode: int, batch: int, full: int, valid: int) -> float:
    """Return what a summed loss is divided by: at least 1, as in Caffe.

    ``batch`` counts samples, ``full`` all labels and ``valid`` those that are not ignored.
    """
    divisors: dict[int, int] = {FULL: full, VALID: valid, BATCH_SIZE: batch}
    return float(max(1, divisors.get(mode, 1)))


class LabelLayout:
    """Predictions seen as (outer, classes, inner) and their labels as (outer, inner).

    Without an ``axis`` all values of a sample are classes.  Raises LayerError unless there is one
    label for each prediction.
    """

    def __init__(self, layer: Layer, bottom: list[Blob], axis: int | None = None):
        start, stop = (1, None) if axis is None else (axis, axis + 1)
        self.outer, self.classes = bottom[0].count_of(0, start), bottom[0].count_of(start, stop)
        self.inner = 1 if stop is None else bottom[0].count_of(stop)
        if self.outer * self.inner != bottom[1].count:
            raise mismatch(
                layer,
                bottom,
                0,
                1,
                f"do not fit: there are {self.outer * self.inner} predictions among {self.classes} "
                "classes, and as many labels are needed",
            )

    def scores(self, array: np.ndarray) -> np.ndarray:
        """Return predictions as (outer, classes, inner)."""
        return array.reshape(self.outer, self.classes, self.inner)

    def labels(self, array: np.ndarray) -> np.ndarray:
        """Return labels as (outer, inner)."""
        return array.reshape(self.outer, self.inner)


def wrong_label(layer: Layer, bottom: list[Blob], layout: LabelLayout, index: int) -> Exception:
    """Return the error for the label with flat ``index``: it is none of the classes."""
    sample = index // max(1, bottom[1].count // bottom[1].shape[0])
    value = bottom[1].data.reshape(-1)[index]
    return layer.error(
        f"label {value:g} of sample {sample} in bottom {describe(layer, bottom, 1)} is none of the "
        f"{layout.classes} classes (0 to {layout.classes - 1})"
    )


def checked_labels(
    layer: Layer, bottom: list[Blob], layout: LabelLayout, ignore: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels (outer, inner) as integers, ignored ones as 0, and which of them count.

    Raises LayerError for a label that is none of the classes.
    """
    labels = layout.labels(bottom[1].data)
    with np.errstate(invalid="ignore"):
        classes = labels.astype(np.intp)
    counted = np.ones(classes.shape, bool) if ignore is None else classes != ignore
    outside = np.flatnonzero(counted & ((classes < 0) | (classes >= layout.classes)))
    if outside.size:
        raise wrong_label(layer, bottom, layout, int(outside[0]))
    if ignore is not None:
        classes[~counted] = 0
    return classes, counted
