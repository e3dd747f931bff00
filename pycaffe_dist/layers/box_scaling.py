"""Boxes relative to a net's input as pixels of the images that were resized to it."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.schema import caffe_pb2

_MODES = caffe_pb2.ResizeParameter


def _without_padding(
    boxes: np.ndarray, sizes: np.ndarray, resize: caffe_pb2.ResizeParameter
) -> np.ndarray:
    """Undo FIT_LARGE_SIZE_AND_PAD: the image was scaled to fit, then padded on two sides.

    As in the fork, boxes in the padding alone are left as they are.
    """
    aspect = sizes[:, 1] / sizes[:, 0]
    is_wide = aspect > resize.width / resize.height
    # The share of the input that is padding, on each side: of x, of y.
    pad = np.stack(
        (
            np.where(is_wide, 0, (1 - resize.height * aspect / resize.width) / 2),
            np.where(is_wide, (1 - resize.width / aspect / resize.height) / 2, 0),
        ),
        axis=1,
    )
    low, high = np.tile(pad, 2), np.tile(1 - pad, 2)
    outside = (boxes[:, 0] >= high[:, 0]) | (boxes[:, 1] >= high[:, 1])
    outside |= (boxes[:, 2] <= low[:, 0]) | (boxes[:, 3] <= low[:, 1])
    return np.where(outside.reshape(-1, 1), boxes, (boxes - low) / (high - low))


def in_pixels(
    boxes: np.ndarray, sizes: np.ndarray, resize: caffe_pb2.ResizeParameter | None = None
) -> np.ndarray:
    """Return boxes (n, 4: x1, y1, x2, y2) in pixels of their images, clipped to them.

    ``boxes`` are relative to the net's input, ``sizes`` (n, 2) the images' heights and widths.
    ``resize`` is the ResizeParameter with which images became inputs, if they were not stretched.
    """
    sizes = sizes.astype(boxes.dtype)
    ends = np.tile(sizes[:, ::-1], 2)
    if resize is not None and resize.resize_mode == _MODES.FIT_SMALL_SIZE:
        if resize.height_scale and resize.width_scale:
            scale = np.array((resize.width_scale, resize.height_scale) * 2, boxes.dtype)
            return np.clip(boxes * scale, 0, ends)
    elif resize is not None and resize.resize_mode == _MODES.FIT_LARGE_SIZE_AND_PAD:
        boxes = _without_padding(boxes, sizes, resize)
    return np.clip(boxes, 0, 1) * ends
