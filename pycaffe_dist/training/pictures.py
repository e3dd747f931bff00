"""Pictures of arrays: tiles of maps, images as people see them, boxes on images."""

from __future__ import annotations

import cv2
import numpy as np

_BOX = (0, 200, 0)
_LEAST_SIDE = 96  # smaller pictures grow to this many pixels


def tiles(maps: np.ndarray, most: int = 64) -> np.ndarray:
    """Return the first ``most`` of maps (N, h, w) or images (N, 3, h, w) as one picture, uint8.

    They lie in rows with a line of one pixel between them; BGR becomes RGB.  Numbers are scaled
    together, so that the least is black and the largest is white.
    """
    maps = np.asarray(maps[:most], np.float32)
    if maps.ndim == 3:
        maps = maps[:, None]
    count, channels, height, width = maps.shape
    finite = np.isfinite(maps)
    least, largest = maps.min(where=finite, initial=np.inf), maps.max(where=finite, initial=-np.inf)
    scale = 255 / (largest - least) if largest > least else 0.0
    levels = np.where(finite, (maps - least) * scale, 0).astype(np.uint8)
    columns = int(np.ceil(np.sqrt(count)))
    rows = -(-count // columns)
    grid = np.full((rows * columns, channels, height + 1, width + 1), 64, np.uint8)
    grid[:count, :, :height, :width] = levels
    grid = grid.reshape(rows, columns, channels, height + 1, width + 1).transpose(0, 3, 1, 4, 2)
    picture = grid.reshape(rows * (height + 1), columns * (width + 1), channels)
    return _grown(picture[:-1, :-1, ::-1])


def counts_picture(counts: np.ndarray) -> np.ndarray:
    """Return a matrix of counts as a picture, each row's share of its sum, from white to blue."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    dark = np.array([8, 48, 107], np.float32)
    return _grown((255 - shares[..., None] * (255 - dark)).astype(np.uint8))


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
