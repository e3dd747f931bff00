"""Squares from the middle of image files, as ImageNet's images are prepared."""

from __future__ import annotations

import os

from pycaffe_dist.data.image import encode, read_image, resize
from pycaffe_dist.data.writers import write_file
from pycaffe_dist.errors import DataError


def crop_file(source: str, target: str, side: int) -> None:
    """Resize an image so that its shorter side has ``side`` pixels, and write its central square.

    The kind of file is that of the target's ending.  The target appears whole or not at all; its
    folder is made.  Raises `DataError`.
    """
    image = read_image(source, color=True)
    _, height, width = image.shape
    if height > width:
        height, width = side * height // width, side
    else:
        height, width = side, side * width // height
    image = resize(image, height, width)
    top, left = (height - side) // 2, (width - side) // 2
    kind = os.path.splitext(target)[1].removeprefix(".").lower() or "jpg"
    data = encode(image[:, top : top + side, left : left + side], kind)
    folder = os.path.dirname(os.path.abspath(target))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot create folder '{folder}': {error.strerror}") from error
    write_file(target, data, "image")
