"""The base of loss layers: the scalar top, the loss weight, the normalizer, and label checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.labels import class_numbers
from pycaffe_dist.kernels.softmax import NO_LABEL
from pycaffe_dist.layers.base import Arity, Layer
from pycaffe_dist.layers.checking import (
    describe,
    mismatch,
    report,
    require_no_gradient,
    require_same_batch,
)
from pycaffe_dist.schema import caffe_pb2

FULL = caffe_pb2.LossParameter.FULL
VALID = caffe_pb2.LossParameter.VALID
BATCH_SIZE = caffe_pb2.LossParameter.BATCH_SIZE
PRE_FIXED = caffe_pb2.LossParameter.PRE_FIXED


class Loss(Layer):
    """The base of losses: predictions and labels in, a scalar out.

    ``loss`` returns the value; ``gradient`` sets the diff of bottom[0] times ``weight``, the top's
    loss weight.
    """

    bottoms = Arity(2, 2)
    is_loss = True
    averages_samples = True

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        """Return the loss; on a GPU it may be an array without axes."""
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

    def divisor(self, mode: int, sizes: tuple[int, int], valid: Any, fixed: float = 1.0) -> float:
        """Return what a sum of losses is divided by, or 0 for this rank's number of valid labels.

        ``sizes`` are the numbers of samples and of labels; ``fixed`` is the
        ``pre_fixed_normalizer``.  ``valid`` has this rank's numbers of valid labels, to be added.
        On several ranks all divide by the mean number, so that the mean of their losses is the
        loss of all their samples; it is not needed where no label can be ignored.
        """
        if mode == VALID:
            if self.uses_rank_mean and self.context.rank_mean.several:
                return self.context.rank_mean(float(np.sum(valid))) or 1.0
            return 0.0
        divisors: dict[int, float] = {FULL: sizes[1], BATCH_SIZE: sizes[0], PRE_FIXED: fixed}
        return float(max(1, divisors.get(mode, 1)))

    def weight_of(self, top: list[Blob]) -> float:
        """Return the loss weight, which the net writes to the top's diff on the host."""
        with device.use(device.HOST):
            return float(top[0].read_diff())

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Only predictions have a gradient."""
        return bottom_index == 0


def normalization_of(param: caffe_pb2.LossParameter, default: int = VALID) -> int:
    """Return the mode of a ``LossParameter``; the old ``normalize`` applies if it is alone."""
    if param.HasField("normalization"):
        return param.normalization
    if param.HasField("normalize"):
        return VALID if param.normalize else BATCH_SIZE
    return default


class LabelLayout:
    """Views predictions as (outer, classes, inner) and their labels as (outer, inner).

    Without an ``axis`` all values of a sample are classes.  Raises LayerError unless there is one
    label per prediction.
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


def wrong_label(
    layer: Layer, bottom: list[Blob], layout: LabelLayout
) -> Callable[[int, float], Exception]:
    """Return a function that makes the error for a wrong label, from flat index and value."""
    each = max(1, bottom[1].count_of(1))
    where = describe(layer, bottom, 1)

    def error(index: int, value: float) -> Exception:
        return layer.error(
            f"label {value:g} of sample {index // each} in bottom {where} is none of the "
            f"{layout.classes} classes (0 to {layout.classes - 1})"
        )

    return error


def checked_labels(
    layer: Layer, bottom: list[Blob], layout: LabelLayout, ignore: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels (outer, inner) as integers, ignored ones as 0, and which labels are valid.

    Raises LayerError, on a GPU later, for a label that is not a class.
    """
    labels = layout.labels(bottom[1].data)
    classes, counted = xp().empty(labels.shape, np.int64), xp().empty(labels.shape, bool)
    wrong = xp().empty(1, np.uint64)
    ignored = NO_LABEL if ignore is None else ignore
    class_numbers(labels, layout.classes, ignored, False, classes, counted, wrong)
    report(wrong, wrong_label(layer, bottom, layout))
    return classes, counted
