"""The idx format of MNIST's files, gzipped or not."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zlib

import numpy as np

from pycaffe_dist import limits
from pycaffe_dist.errors import DataError
from pycaffe_dist.schema.reading import read_bytes

IMAGES_MAGIC = 2051
LABELS_MAGIC = 2049
_GZIP = b"\x1f\x8b"


def read_images(path: str) -> np.ndarray:
    """Return the images in an idx3 file, (N, height, width) uint8; raises `DataError`."""
    return _read(path, IMAGES_MAGIC, 3, "images")


def read_labels(path: str) -> np.ndarray:
    """Return the labels in an idx1 file, (N,) uint8; raises `DataError`."""
    return _read(path, LABELS_MAGIC, 1, "labels")


def read_pair(images: str, labels: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels in two idx files, the same number; raises `DataError`."""
    pixels, numbers = read_images(images), read_labels(labels)
    if len(pixels) != len(numbers):
        raise DataError(
            f"'{images}' has {len(pixels)} images, but '{labels}' has {len(numbers)} labels"
        )
    return pixels, numbers


def write_idx(path: str, values: np.ndarray) -> None:
    """Write uint8 images (N, height, width) or labels (N,), gzipped if the name ends in .gz."""
    magic = IMAGES_MAGIC if values.ndim == 3 else LABELS_MAGIC
    data = struct.pack(f">{1 + values.ndim}I", magic, *values.shape) + values.tobytes()
    with open(path, "wb") as file:
        file.write(gzip.compress(data, mtime=0) if path.endswith(".gz") else data)


def _read(path: str, magic: int, axes: int, what: str) -> np.ndarray:
    data = read_bytes(path, lambda message: DataError(f"{path}: {message}"))
    head = 4 * (1 + axes)
    start = _contents(path, data, head)
    found = struct.unpack_from(">I", start.ljust(4, b"\0"))[0]
    if found != magic or len(start) < head:
        raise DataError(
            f"'{os.fspath(path)}' is not an idx file of {what}: it should begin with the number "
            f"{magic}, found {found}"
        )
    shape = struct.unpack_from(f">{axes}I", start, 4)
    expected = int(np.prod(shape, dtype=object))
    if excess := limits.excess_expanded(expected, len(data)):
        raise DataError(f"'{path}' {excess}")
    # One byte more shows whether the file is too long.
    values = np.frombuffer(_contents(path, data, head + expected + 1), np.uint8, offset=head)
    if values.size != expected:
        found = "more" if values.size > expected else str(values.size)
        raise DataError(
            f"'{path}' should hold {shape[0]} {what}, {expected} bytes after its head, "
            f"but has {found}"
        )
    return values.reshape(shape)


def _contents(path: str, data: bytes, most: int) -> bytes:
    """Return the contents of a file, decompressed if necessary, up to ``most`` bytes."""
    if not data.startswith(_GZIP):
        return data[:most]
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return file.read(most)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' is a damaged gzip file: {error}") from error
