"""Folders of images with a subfolder for each class, and their division for training and tests."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from pycaffe_dist.data.image_list import ImageList
from pycaffe_dist.errors import DataError
from pycaffe_dist.log import logger

# The endings of the image files that OpenCV reads.
_KINDS = "bmp", "jp2", "jpeg", "jpg", "pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp"
ENDINGS = frozenset(f".{kind}" for kind in _KINDS)
# The names of subfolders that divide the images themselves.
_TRAIN, _VAL = "train", ("val", "test")


@dataclass(frozen=True)
class ImageFolder:
    """The names of the classes, by label, and the images for training and for tests.

    Paths count from the folder.
    """

    classes: list[str]
    train: ImageList
    val: ImageList


def read_folder(folder: str, part: float = 0.0, seed: int = 0) -> ImageFolder:
    """Return the images in the subfolders of ``folder``, whose names are the classes.

    Labels count from 0 in the order of the names.  A ``part`` of every class, at least one image if
    it has two, is for tests; images are in a random order that depends on ``seed``.  A folder that
    has only subfolders "train" and "val" (or "test") divides its images itself.  Raises DataError.
    """
    names = _subfolders(folder)
    val = next((name for name in _VAL if sorted([_TRAIN, name]) == names), "")
    order = np.random.default_rng(seed)
    if val and part:
        classes = _subfolders(os.path.join(folder, _TRAIN))
        _check_same_classes(folder, classes, val)
        train = _images(folder, _TRAIN, classes)
        return ImageFolder(classes, _shuffled(train, order), _images(folder, val, classes))
    if val:
        logger.warning(
            "'%s' has only the subfolders %s: they are classes here, and with --split parts",
            *(folder, " and ".join(names)),
        )
    train, val_images = ImageList([], []), ImageList([], [])
    for label, name in enumerate(names):
        paths = _files(folder, name)
        paths = [paths[i] for i in order.permutation(len(paths))]
        kept = len(paths) - _for_tests(len(paths), part)
        for images, some in ((train, paths[:kept]), (val_images, paths[kept:])):
            images.paths.extend(some)
            images.labels.extend([label] * len(some))
    return ImageFolder(names, _shuffled(train, order), val_images)


def image_files(path: str) -> list[str]:
    """Return the image files below a folder, sorted; for a file, the file itself."""
    if not os.path.isdir(path):
        return [path]
    found = []
    for folder, subfolders, names in os.walk(path, followlinks=True):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        found += [os.path.join(folder, name) for name in sorted(names) if _is_image(name)]
    return found


def write_classes(file: str, classes: list[str]) -> None:
    """Write the names of classes, one a line, by label; raises DataError.

    A file that has other classes is not replaced.
    """
    text = "".join(f"{name}\n" for name in classes).encode("utf-8", "surrogateescape")
    try:
        if os.path.exists(file):
            with open(file, "rb") as old:
                if old.read() != text:
                    raise DataError(f"{file} exists already, with other classes; remove it first")
            return
        with open(file, "xb") as new:
            new.write(text)
    except OSError as error:
        raise DataError(f"cannot write the classes '{file}': {error.strerror}") from error


def _subfolders(folder: str) -> list[str]:
    """Return the names of the subfolders, sorted; raises DataError when there is none."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"cannot read the folder of images '{folder}': {error.strerror}") from error
    names = sorted(entry.name for entry in entries if entry.is_dir())
    if names:
        return names
    raise DataError(
        f"'{folder}' has no subfolder: expected one for each class, found {len(entries)} file(s)"
    )


def _check_same_classes(folder: str, classes: list[str], val: str) -> None:
    others = _subfolders(os.path.join(folder, val))
    for name in sorted(set(classes) ^ set(others)):
        where = _TRAIN if name in classes else val
        raise DataError(f"'{folder}': class '{name}' is in '{where}' only")


def _images(folder: str, part: str, classes: list[str]) -> ImageList:
    paths, labels = [], []
    for label, name in enumerate(classes):
        found = _files(folder, os.path.join(part, name))
        paths += found
        labels += [label] * len(found)
    return ImageList(paths, labels)


def _files(folder: str, name: str) -> list[str]:
    """Return the images of a class, by their paths below ``folder``; raises DataError."""
    found = [os.path.relpath(path, folder) for path in image_files(os.path.join(folder, name))]
    if not found:
        raise DataError(
            f"'{os.path.join(folder, name)}' has no image: expected files that end in "
            f"{', '.join(sorted(ENDINGS))}; remove the folder if it is not a class"
        )
    for path in found:
        if "\n" in path:
            raise DataError(f"the name of image {path!r} has a line break: rename it")
    return found


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in ENDINGS


def _for_tests(count: int, part: float) -> int:
    """Return how many of a class's images are for tests."""
    return min(max(1, round(count * part)), count - 1) if part else 0


def _shuffled(images: ImageList, order: np.random.Generator) -> ImageList:
    numbers = order.permutation(len(images))
    return ImageList([images.paths[i] for i in numbers], [images.labels[i] for i in numbers])
