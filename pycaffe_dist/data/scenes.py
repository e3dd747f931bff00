"""Random changes of images together with the boxes in them, as NVIDIA/caffe makes for DetectNet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pycaffe_dist.data.image import opencv
from pycaffe_dist.data.image_changes import plain_opencv
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.threads import parallel_for

Size = tuple[int, int]
# Random numbers that each image takes.
DRAWS = 12
# Smaller changes of colors, and smaller rotations, are none.
_LEAST, _FULL = float(np.finfo(np.float32).eps), 1 - 1 / 255


@dataclass(frozen=True)
class Changes:
    """The changes to each of N images.

    ``hue`` (N) is added in degrees, ``saturation`` (N) multiplied; then the image is mirrored where
    ``flip`` (N), scaled to ``size`` (N, 2: width, height), turned by ``rotation`` (N, degrees), and
    cropped from ``offset`` (N, 2: x, y) on.
    """

    hue: np.ndarray
    saturation: np.ndarray
    flip: np.ndarray
    size: np.ndarray
    rotation: np.ndarray
    offset: np.ndarray

    def matrices(self) -> np.ndarray:
        """Return the maps (N, 2, 3) from the pixels of scaled images to those of turned ones."""
        center, angle = self.size * 0.5, np.radians(self.rotation)
        low, _ = _bounds(self.size, center, self.rotation)
        turn = np.empty((len(angle), 2, 2))
        turn[:, 0, 0] = turn[:, 1, 1] = np.cos(angle)
        turn[:, 1, 0] = np.sin(angle)
        turn[:, 0, 1] = -turn[:, 1, 0]
        shift = center - low - (turn @ center[:, :, None])[:, :, 0]
        return np.concatenate([turn, shift[:, :, None]], axis=2)


def _bounds(
    size: np.ndarray, center: np.ndarray, rotation: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return first pixel and size, both (N, 2), of the upright rectangles around turned ones."""
    angle = np.radians(rotation)
    cos, sin = (0.5 * function(angle).astype(np.float32) for function in (np.cos, np.sin))
    wide, high = size.astype(np.float32).T
    first = np.stack([-sin * high - cos * wide, cos * high - sin * wide], axis=1)
    second = np.stack([sin * high - cos * wide, -cos * high - sin * wide], axis=1)
    corners = np.stack([first, second, -first, -second]) + center.astype(np.float32)
    low = np.floor(corners.min(0)).astype(np.int64)
    return low, np.ceil(corners.max(0)).astype(np.int64) - low + 1


def no_changes(count: int, size: Size) -> Changes:
    """Return changes that only scale ``count`` images to ``size`` (width, height)."""
    none = np.zeros(count)
    sizes = np.tile(np.array(size), (count, 1))
    return Changes(none, none + 1, none != 0, sizes, none, np.zeros((count, 2), np.int64))


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round halves away from 0."""
    return (np.sign(values) * np.floor(np.abs(values) + 0.5)).astype(np.int64)


def random_changes(
    param: caffe_pb2.DetectNetAugmentationParameter, draws: np.ndarray, old: Size, new: Size
) -> Changes:
    """Return changes for images of size ``old`` that become ``new`` (width, height).

    ``draws`` (N, DRAWS) are numbers from 0 to 1.
    """
    draw = iter(draws.T)

    def chosen(chance: float, value: np.ndarray, other: float) -> np.ndarray:
        return np.where(next(draw) < chance, value, other)

    turn = np.clip((next(draw) - 0.5) * 2 * param.hue_rotation, -180, 180)
    hue = chosen(param.hue_rotation_prob, turn, 0)
    saturation = chosen(param.desaturation_prob, 1 - next(draw) * param.desaturation_max, 1)
    flip = next(draw) < param.flip_prob
    spread = param.scale_max - param.scale_min
    scale = chosen(param.scale_prob, param.scale_min + spread * next(draw), 1)
    size = np.maximum(1, _rounded(np.array(old) * scale[:, None]))
    rotation = chosen(param.rotation_prob, (next(draw) - 0.5) * 2 * param.max_rotate_degree, 0)
    rotation[np.abs(rotation) <= _LEAST] = 0
    turned = _bounds(size, np.trunc(size * 0.5), rotation)[1]
    room = np.where(rotation[:, None] != 0, turned, size) - np.array(new)
    shift = np.array([param.shift_x, param.shift_y])
    random = next(draw) < param.crop_prob
    place = np.stack([next(draw), next(draw)], axis=1)
    offset = np.where(random[:, None], place * (room + shift) - shift // 2, 0.5 * room)
    hue[np.abs(hue) <= _LEAST] = 0
    saturation[saturation >= _FULL] = 1
    return Changes(hue, saturation, flip, size, rotation, _rounded(offset))


def scaled_mean(mean: np.ndarray, size: Size) -> np.ndarray:
    """Return a mean image (h, w, 3) in the images' size (width, height); others as they are."""
    if mean.ndim == 1 or mean.shape[1::-1] == size:
        return mean
    with plain_opencv():
        cv2 = opencv()
        return cv2.resize(mean, size, interpolation=cv2.INTER_CUBIC)


def changed_images(
    images: np.ndarray, changes: Changes, mean: np.ndarray, changed: np.ndarray
) -> None:
    """Set ``changed`` (N, 3, h, w) from images (N, 3, H, W) of 0 to 255, with zeros around them.

    ``mean`` (H, W, 3) or (3,) is subtracted after the colors changed.  All is in single precision:
    OpenCV turns the borders of other images in another way.  Raises DataError.
    """
    shares = mean.astype(np.float32) / np.float32(255)
    args = images, changes, changes.matrices(), shares, changed
    parallel_for(_change, len(images), *args)


def _change(
    begin: int,
    end: int,
    images: np.ndarray,
    changes: Changes,
    matrices: np.ndarray,
    mean: np.ndarray,
    changed: np.ndarray,
) -> None:
    # The setting belongs to this thread.
    with plain_opencv():
        for n in range(begin, end):
            _paste(_changed(images[n], changes, matrices, mean, n), changes.offset[n], changed[n])


def _changed(
    image: np.ndarray, changes: Changes, matrices: np.ndarray, mean: np.ndarray, n: int
) -> np.ndarray:
    """Return ``image`` as it is before the crop, (h, w, 3)."""
    cv2 = opencv()
    pixels = cv2.merge(list(image.astype(np.float32, copy=False))) / np.float32(255)
    if changes.hue[n] or changes.saturation[n] != 1:
        pixels = _recolored(pixels, changes.hue[n], changes.saturation[n])
    # NumPy is slow where the last axis is short.
    pixels = pixels - mean if mean.ndim > 1 else cv2.subtract(pixels, (*mean.tolist(), 0.0))
    if changes.flip[n]:
        pixels = np.ascontiguousarray(pixels[:, ::-1])
    width, height = changes.size[n].tolist()
    if pixels.shape[:2] != (height, width):
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_CUBIC)
    return _turned(pixels, changes, matrices, n) if changes.rotation[n] else pixels


def _recolored(pixels: np.ndarray, hue: float, saturation: float) -> np.ndarray:
    cv2 = opencv()
    parts = cv2.cvtColor(pixels, cv2.COLOR_BGR2HSV)
    parts[..., 0] += np.float32(hue)
    parts[..., 1] *= np.float32(saturation)
    return cv2.cvtColor(parts, cv2.COLOR_HSV2BGR)


def _turned(pixels: np.ndarray, changes: Changes, matrices: np.ndarray, n: int) -> np.ndarray:
    cv2 = opencv()
    own = slice(n, n + 1)
    center = np.trunc(changes.size[own] * 0.5)
    width, height = _bounds(changes.size[own], center, changes.rotation[own])[1][0].tolist()
    empty = np.zeros((height, width, 3), pixels.dtype)
    how = {"flags": cv2.INTER_LINEAR, "borderMode": cv2.BORDER_TRANSPARENT}
    return cv2.warpAffine(pixels, matrices[n], (width, height), dst=empty, **how)


def _paste(pixels: np.ndarray, offset: np.ndarray, target: np.ndarray) -> None:
    """Set ``target`` (3, h, w) to the part of ``pixels`` from ``offset`` on, times 255."""
    target[...] = 0
    source, goal = [], []
    for first, has, wants in zip(offset[::-1].tolist(), pixels.shape, target.shape[1:]):
        length = max(0, min(has, first + wants) - max(0, first))
        source.append(slice(max(0, first), max(0, first) + length))
        goal.append(slice(max(0, -first), max(0, -first) + length))
    part = pixels[tuple(source)].transpose(2, 0, 1)
    if part.size:
        np.multiply(part, 255, out=target[(slice(None), *goal)], casting="same_kind")


def changed_boxes(boxes: np.ndarray, changes: Changes, old: Size) -> np.ndarray:
    """Return boxes (N, R, 4) of x, y, width, height as they are in the changed images.

    A box keeps its size when its image turns.
    """
    width, number = old[0], boxes.dtype.type
    x, y, wide, high = np.moveaxis(boxes, 2, 0)
    x = np.where(changes.flip[:, None], width - x - wide - 1, x)
    by = (changes.size / np.array(old)).astype(number)
    x, wide = x * by[:, :1], wide * by[:, :1]
    y, high = y * by[:, 1:], high * by[:, 1:]
    matrices = changes.matrices().astype(number)
    centers = np.stack([x + wide / 2, y + high / 2, np.ones_like(x)])
    turned = np.einsum("nij,jnr->inr", matrices, centers)
    turns = changes.rotation[:, None] != 0
    x = np.where(turns, turned[0] - wide / 2, x) - changes.offset[:, :1]
    y = np.where(turns, turned[1] - high / 2, y) - changes.offset[:, 1:]
    return np.stack([x, y, wide, high], axis=2).astype(number)
