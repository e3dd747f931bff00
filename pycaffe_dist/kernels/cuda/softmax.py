"""Softmax and its multinomial logistic loss on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.rows import WARP, block_size, row_shift
from pycaffe_dist.kernels.softmax import SMALLEST

_cu = kernels("softmax")
_SMALLEST = float(SMALLEST)


def softmax_forward(x: Any, y: Any) -> None:
    """See `pycaffe_dist.kernels.softmax.softmax_forward`."""
    outer, classes, inner = x.shape
    if inner == 1 and classes > WARP:
        _cu.softmax_rows.blocks(outer, x, y, classes, outer, threads=block_size(classes))
    else:
        _cu.softmax_planes(outer * inner, x, y, classes, inner, outer * inner)


def softmax_backward(y: Any, dy: Any, dx: Any) -> None:
    """See `pycaffe_dist.kernels.softmax.softmax_backward`."""
    outer, classes, inner = y.shape
    if inner == 1 and classes > WARP:
        _cu.gradient_rows.blocks(outer, y, dy, dx, classes, outer, threads=block_size(classes))
    else:
        _cu.gradient_planes(outer * inner, y, dy, dx, classes, inner, outer * inner)


def label_loss(
    probability: Any, label: Any, weights: Any, ignore: int, loss: Any, valid: Any, wrong: Any
) -> None:
    """See `pycaffe_dist.kernels.softmax.label_loss`."""
    outer, classes, inner = probability.shape
    arrays = probability, label, _or_null(weights), loss, valid, wrong
    if inner == 1:
        _cu.single_label_loss(outer, *arrays, ignore, _SMALLEST, classes, outer)
    else:
        _cu.label_loss.blocks(
            *(outer, *arrays, ignore, _SMALLEST, outer, classes, inner), threads=block_size(inner)
        )


def each_label_loss(probability: Any, label: Any, ignore: int, losses: Any) -> None:
    """See `pycaffe_dist.kernels.softmax.each_label_loss`."""
    _, classes, inner = probability.shape
    args = probability, label, losses, ignore, _SMALLEST, classes, inner, losses.size
    _cu.each_label_loss(losses.size, *args)


def label_loss_gradient(
    probability: Any,
    label: Any,
    weights: Any,
    ignore: int,
    weight: float,
    normalizer: Any,
    dx: Any,
) -> None:
    """See `pycaffe_dist.kernels.softmax.label_loss_gradient`."""
    outer, classes, inner = probability.shape
    rows, shift = outer * classes, row_shift(inner)
    arrays = probability, label, _or_null(weights), normalizer, dx
    sizes = ignore, classes, inner, rows, shift
    _cu.label_loss_gradient(rows << shift, *arrays, weight, *sizes)


def _or_null(weights: Any) -> Any:
    return weights if weights.size else None
