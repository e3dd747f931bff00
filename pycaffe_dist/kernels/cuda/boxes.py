"""Boxes on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels

_cu = kernels("boxes")


def decode_boxes(
    numbers: Any, priors: Any, variances: Any, code: int, variance_in_target: bool, boxes: Any
) -> None:
    """See `pycaffe_dist.kernels.boxes.decode_boxes`."""
    images, count, classes = numbers.shape[:3]
    n = images * count * classes
    how = code, variance_in_target
    _cu.decode_boxes(n, numbers, priors, variances, *how, boxes, count, classes, n)
