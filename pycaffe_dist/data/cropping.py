"""Crops central squares from image files, the usual preparation of ImageNet's images."""

from __future__ import annotations

import os

from pycaffe_dist.data.image import encode, read_image, resize
from pycaffe_dist.data.writers import write_file
from pycaffe_dist.errors import DataError


def crop_file(source: str, target: str, side: int) -> None:
    """Resize an image so that its shorter side has ``side`` pixels, and write its central square.

    The target's ending decides on the kind of file.  The target is written atomically; its folder
    is created.  Raises `DataError`.
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
