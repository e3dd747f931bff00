"""Lists of images' names and sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np

from pycaffe_dist.data.image import decode_image, read_file
from pycaffe_dist.data.image_list import Line, read_words
from pycaffe_dist.errors import DataError, PcaffeError
from pycaffe_dist.schema.reading import read_lines


def read_numbers(file: str) -> dict[str, str]:
    """Return the numbers of images by their names; raises DataError."""
    numbers: dict[str, str] = {}
    for line in read_words(file, 2, "a name and a number"):
        name, number = line.words[:2]
        if name in numbers or not number.isdecimal():
            raise DataError(f"{line.place}: expected a new name and a number, found '{line.text}'")
        numbers[name] = number
    return numbers


def size_line(root: str, line: Line, numbers: Mapping[str, str] | None) -> str:
    """Return ``name height width`` of a list's image, or its number in place of the name.

    A name is a file's, without folder and ending.  Raises DataError.
    """
    path = os.path.join(root, line.words[0])
    name = os.path.splitext(os.path.basename(path))[0]
    try:
        image = decode_image(read_file(path), True, lambda: f"image '{path}'")
    except DataError as error:
        raise DataError(f"{line.place}: {error}") from error
    if numbers is not None and name not in numbers:
        raise DataError(f"{line.place}: '{name}' has no number")
    shown = name if numbers is None else numbers[name]
    return f"{shown} {image.shape[1]} {image.shape[2]}\n"


def read_image_sizes(path: str, fail: Callable[[str], PcaffeError]) -> tuple[list[str], np.ndarray]:
    """Return names and sizes (n, 2: height, width) from a file of lines ``name height width``.

    ``fail`` makes the error for a file that cannot be read or has another line.
    """
    names, sizes = [], []
    lines = read_lines(path, lambda message: fail(f"name_size_file '{path}' {message}"))
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 3 or not all(word.isdecimal() and int(word) for word in words[1:]):
            raise fail(f"{path}:{number}: expected a name, a height and a width, found '{line}'")
        names.append(words[0])
        sizes.append((int(words[1]), int(words[2])))
    if not names:
        raise fail(f"name_size_file '{path}' names no images")
    return names, np.array(sizes, float)
