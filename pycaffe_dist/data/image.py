"""Image files, decoded with OpenCV as Caffe decodes them: blue, green, red."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.errors import DataError


def decode_image(data: np.ndarray | bytes, color: bool | None, what: str) -> np.ndarray:
    """Return the image in an image file's bytes as (C, H, W) uint8, a view that is not contiguous.

    ``color`` True gives 3 channels, False 1, None what the file has; ``what`` names the image in
    errors.  Raises `DataError` when the bytes are no image or one of other than 8 bits.
    """
    import cv2

    flags = {True: cv2.IMREAD_COLOR, False: cv2.IMREAD_GRAYSCALE, None: cv2.IMREAD_UNCHANGED}
    encoded = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    image = cv2.imdecode(encoded, flags[color]) if encoded.size else None
    if image is None:
        head = encoded[:4].tobytes().hex(" ") or "nothing"
        raise DataError(
            f"{what} cannot be decoded: expected an image file that OpenCV knows (JPEG, PNG, …), "
            f"found {encoded.size} bytes that begin with {head}"
        )
    if image.dtype != np.uint8:
        raise DataError(f"{what} should have 8 bits per channel, found {image.dtype}")
    return image[None] if image.ndim == 2 else image.transpose(2, 0, 1)
