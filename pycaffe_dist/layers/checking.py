"""Checks that layers share, with messages that name the blobs and their shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import NetError
from pycaffe_dist.kernels.labels import class_numbers, first_wrong
from pycaffe_dist.kernels.softmax import NO_LABEL
from pycaffe_dist.layers.base import Layer


def describe(layer: Layer, bottom: list[Blob], index: int) -> str:
    """Return the name and shape of a bottom: ``'ip2' (64, 10)``."""
    names = layer.param.bottom
    name = f"'{names[index]}'" if index < len(names) else f"bottom[{index}]"
    return f"{name} {bottom[index].shape}"


def axis_of(layer: Layer, bottom: list[Blob], axis: int, field: str = "axis") -> int:
    """Return ``axis`` of bottom[0] counted from the front; raises LayerError if it has none."""
    try:
        return bottom[0].canonical_axis(axis)
    except NetError:
        raise layer.error(
            f"{field} {axis} is out of range for bottom {describe(layer, bottom, 0)}"
        ) from None


def require_axes(layer: Layer, bottom: list[Blob], index: int, count: int) -> None:
    """Raise LayerError unless the bottom has ``count`` axes."""
    if bottom[index].ndim != count:
        raise layer.error(f"needs {count} axes, found bottom {describe(layer, bottom, index)}")


def require_same_shape(layer: Layer, bottom: list[Blob], first: int, second: int) -> None:
    """Raise LayerError unless both bottoms have the same shape."""
    if bottom[first].shape != bottom[second].shape:
        raise mismatch(layer, bottom, first, second, "need the same shape")


def require_same_count(layer: Layer, bottom: list[Blob], first: int, second: int) -> None:
    """Raise LayerError unless both bottoms have the same number of elements."""
    if bottom[first].count != bottom[second].count:
        raise mismatch(layer, bottom, first, second, "need the same number of elements")


def require_same_batch(layer: Layer, bottom: list[Blob], first: int, second: int) -> None:
    """Raise LayerError unless axis 0 of both bottoms is equal."""
    if bottom[first].shape[:1] != bottom[second].shape[:1]:
        raise mismatch(layer, bottom, first, second, "need the same first dimension")


def require_finite(layer: Layer, bottom: list[Blob]) -> None:
    """Raise LayerError unless all numbers of the bottoms, on the host, are finite."""
    for index, blob in enumerate(bottom):
        if not np.isfinite(blob.data).all():
            where = describe(layer, bottom, index)
            raise layer.error(f"needs finite numbers, found others in bottom {where}")


def require_boxes(layer: Layer, bottom: list[Blob], index: int) -> None:
    """Raise LayerError unless the bottom has rows of image, x1, y1, x2, y2."""
    if bottom[index].ndim < 2 or bottom[index].count_of(1) != 5:
        raise layer.error(
            "needs boxes as rows of image, x1, y1, x2, y2, found bottom "
            f"{describe(layer, bottom, index)}"
        )


def output_of(
    layer: Layer, bottom: list[Blob], geometry: Any, spatial: tuple[int, ...]
) -> tuple[int, ...]:
    """Return ``geometry.output_shape(spatial)``; raises LayerError when the kernel does not fit."""
    try:
        return geometry.output_shape(spatial)
    except NetError as error:
        raise layer.error(f"{error}: bottom {describe(layer, bottom, 0)}") from None


def mismatch(layer: Layer, bottom: list[Blob], first: int, second: int, need: str) -> NetError:
    """Return an error with the requirement on two bottoms, and their names and shapes."""
    return layer.error(
        f"bottoms {describe(layer, bottom, first)} and {describe(layer, bottom, second)} {need}"
    )


def report(wrong: Any, error: Callable[[int, float], Exception]) -> None:
    """Raise ``error(position, value)`` if ``wrong`` (see `kernels.labels`) names a value.

    On a GPU it is raised when the host waits for results the next time.
    """

    def check(wrong: np.ndarray) -> None:
        found = first_wrong(wrong)
        if found is not None:
            raise error(*found)

    here = device.current()
    if here.is_gpu:
        device.current_gpu().check_later(wrong, check)
    else:
        check(wrong)


def checked_indices(
    values: Any, limit: int, whole: bool, error: Callable[[int, float], Exception]
) -> Any:
    """Return values as integers from 0 to ``limit`` - 1; with ``whole`` fractions are wrong.

    Raises ``error(position, value)``, see `report`, for a wrong value.
    """
    xp = device.xp()
    indices, counted = xp.empty(values.shape, np.int64), xp.empty(values.shape, bool)
    wrong = xp.empty(1, np.uint64)
    class_numbers(values, limit, NO_LABEL, whole, indices, counted, wrong)
    report(wrong, error)
    return indices


def require_no_gradient(layer: Layer, propagate_down: list[bool], *indices: int) -> None:
    """Raise LayerError if backward shall compute a gradient of labels or indices."""
    for index in indices:
        if index < len(propagate_down) and propagate_down[index]:
            raise layer.error(
                f"cannot backpropagate to '{layer.param.bottom[index]}'; "
                f"set propagate_down: false for bottom {index}"
            )
