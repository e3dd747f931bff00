"""Resizes images as scikit-image and SciPy do for pycaffe, in NumPy alone."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.errors import ArgumentError


def resize_image(im: np.ndarray, new_dims: tuple[int, int], interp_order: int = 1) -> np.ndarray:
    """Return an image (H, W, K) resized to (*new_dims, K), as float32.

    ``interp_order`` is 0 (nearest), 1 (linear) or 3 (cubic).  One or three channels are resized as
    scikit-image does: pixels are areas, and outside of the image is its minimum.  Other numbers of
    channels as SciPy's zoom does: pixels are points, corners stay.  Raises ArgumentError.
    """
    if im.ndim != 3:
        raise ArgumentError(f"resize_image needs an image (H, W, K), found shape {im.shape}")
    if interp_order not in _WEIGHTS:
        raise ArgumentError(f"interp_order {interp_order} is not supported; known are 0, 1 and 3")
    height, width = (int(size) for size in new_dims)
    if min(height, width) < 1:
        raise ArgumentError(f"cannot resize an image to {height} x {width}")
    areas = im.shape[2] in (1, 3)
    least = im.min() if areas else 0
    resized = np.asarray(im, np.float64) - least
    for axis, size in enumerate((height, width)):
        resized = _resize_axis(resized, axis, size, interp_order, areas)
    return (resized + least).astype(np.float32)


def _resize_axis(im: np.ndarray, axis: int, size: int, order: int, areas: bool) -> np.ndarray:
    """Resize one axis: every new row is a weighted sum of a few old ones."""
    old = im.shape[axis]
    if areas:
        places = (np.arange(size) + 0.5) * (old / size) - 0.5
    else:
        places = np.arange(size) * ((old - 1) / max(size - 1, 1))
    first, weights = _WEIGHTS[order](places)
    result = np.zeros(())
    for tap, weight in enumerate(weights):
        index = first + tap
        if areas:
            # Outside of the image is zero.
            weight = np.where((index >= 0) & (index < old), weight, 0)
        rows = im.take(np.clip(index, 0, old - 1), axis)
        result = result + rows * weight.reshape([-1 if a == axis else 1 for a in range(3)])
    return result


def _nearest(places: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    return np.floor(places + 0.5).astype(int), [np.ones_like(places)]


def _linear(places: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    first = np.floor(places).astype(int)
    part = places - first
    return first, [1 - part, part]


def _cubic(places: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Catmull and Rom's spline through the four nearest pixels."""
    before = np.floor(places).astype(int)
    t = places - before
    weights = [
        ((2 - t) * t - 1) * t / 2,
        ((3 * t - 5) * t * t + 2) / 2,
        ((4 - 3 * t) * t + 1) * t / 2,
        (t - 1) * t * t / 2,
    ]
    return before - 1, weights


_WEIGHTS = {0: _nearest, 1: _linear, 3: _cubic}
