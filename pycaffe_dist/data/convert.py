"""Data sets of images and labels, read from their published files and written as Datums."""

from __future__ import annotations

import functools
import os

import numpy as np

from pycaffe_dist.data.sources import Writer
from pycaffe_dist.errors import DataError
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.schema.reading import read_bytes

CIFAR_SHAPE = (3, 32, 32)
CIFAR_TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
CIFAR_TEST_FILES = ("test_batch.bin",)


def write_datums(writer: Writer, images: np.ndarray, labels: np.ndarray, key_digits: int) -> None:
    """Write ``images`` (N, channels, height, width) uint8 with ``labels`` (N,), in order.

    A record's key is its number, with leading zeros to ``key_digits`` digits, as in Caffe.
    """
    channels, height, width = images.shape[1:]
    datum = caffe_pb2.Datum(channels=channels, height=height, width=width)
    for number, (image, label) in enumerate(zip(images, labels)):
        datum.data = image.tobytes()
        datum.label = int(label)
        key = f"{number:0{key_digits}d}".encode()
        writer.put(key, datum.SerializeToString())


def read_cifar(folder: str, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (N, 3, 32, 32) and labels (N,) in files of CIFAR-10's binary version.

    Raises `DataError` when a file is missing or ends within a record.
    """
    record = 1 + int(np.prod(CIFAR_SHAPE))
    parts = []
    for name in names:
        path = os.path.join(folder, name)
        data = read_bytes(path, functools.partial(_error, path))
        if len(data) % record:
            raise DataError(
                f"'{path}' should hold records of {record} bytes each, but has {len(data)} bytes, "
                f"{len(data) % record} too many"
            )
        parts.append(np.frombuffer(data, np.uint8).reshape(-1, record))
    records = np.concatenate(parts)
    return records[:, 1:].reshape(-1, *CIFAR_SHAPE), records[:, 0]


def _error(path: str, message: str) -> DataError:
    return DataError(f"'{path}': {message}")
