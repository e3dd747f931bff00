"""Pictures of arrays: tiles of maps, images as people see them, boxes on images."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np

_BOX = (0, 200, 0)
_LINE = 64.5 / 255  # dark gray
_LEAST_SIDE = 96  # smaller pictures grow to this many pixels


class Mosaic(NamedTuple):
    """Tiles side by side, as numbers from 0 to 1, and the values that 0 and 1 stand for."""

    picture: np.ndarray
    least: float
    largest: float


def mosaic(tiles: np.ndarray, columns: int, line: float) -> Mosaic:
    """Join tiles (n, h, w) or (n, h, w, 3) in rows, on one scale.

    Between them are lines of one pixel of the number ``line``; what is not finite is 0.
    """
    finite = np.isfinite(tiles)
    least = float(tiles.min(where=finite, initial=np.inf))
    largest = float(tiles.max(where=finite, initial=-np.inf))
    scale = 1 / (largest - least) if largest > least else 0.0
    count, height, width, *colors = tiles.shape
    rows = -(-count // columns)
    grid = np.full((rows * columns, height + 1, width + 1, *colors), line, np.float32)
    grid[:count, :height, :width] = np.where(finite, (tiles - least) * scale, 0)
    grid = grid.reshape(rows, columns, height + 1, width + 1, *colors).swapaxes(1, 2)
    picture = grid.reshape(rows * (height + 1), columns * (width + 1), *colors)
    return Mosaic(picture[:-1, :-1], least, largest)


def tiles(maps: np.ndarray, most: int = 64) -> np.ndarray:
    """Return the first ``most`` of maps (N, h, w) or images (N, 1 or 3, h, w), uint8.

    Images' BGR becomes RGB.  The least number is black, the largest white; see `mosaic`.
    """
    maps = np.asarray(maps[:most], np.float32)
    if maps.ndim == 3:
        maps = maps[:, None]
    columns = int(np.ceil(np.sqrt(len(maps))))
    joined = mosaic(maps[:, ::-1].transpose(0, 2, 3, 1), columns, _LINE).picture
    return _grown((255 * joined).astype(np.uint8))


def row_shares(counts: np.ndarray) -> np.ndarray:
    """Return a matrix of counts as shares of the sums of its rows."""
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def counts_picture(counts: np.ndarray) -> np.ndarray:
    """Return a matrix of counts as a picture: the shares of rows, from white to blue."""
    dark = np.array([8, 48, 107], np.float32)
    return _grown((255 - row_shares(counts)[..., None] * (255 - dark)).astype(np.uint8))


def with_boxes(image: np.ndarray, found: np.ndarray, least: float = 0.3) -> np.ndarray:
    """Return an image (C, h, w) with detections drawn: class, score, and corners in [0, 1].

    Detections (K, 6) with a score below ``least`` are left out.
    """
    picture = np.array(np.broadcast_to(shown := tiles(image[None]), (*shown.shape[:2], 3)))
    height, width = picture.shape[:2]
    for label, score, *corners in found[found[:, 1] >= least].tolist():
        x1, y1, x2, y2 = (round(c * side) for c, side in zip(corners, (width, height) * 2))
        cv2.rectangle(picture, (x1, y1), (x2, y2), _BOX, 1)
        words = f"{label:.0f} {score:.2f}"
        cv2.putText(picture, words, (x1 + 1, y1 + 9), cv2.FONT_HERSHEY_PLAIN, 0.7, _BOX)
    return picture


def to_png(picture: np.ndarray) -> bytes:
    """Return a picture (h, w, 1 or 3), RGB, as a PNG file."""
    ok, data = cv2.imencode(".png", np.ascontiguousarray(picture[..., ::-1]))
    assert ok
    return data.tobytes()


def _grown(picture: np.ndarray) -> np.ndarray:
    """Return a small picture with larger pixels."""
    factor = max(1, -(-_LEAST_SIDE // max(1, *picture.shape[:2])))
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)
