"""The mean image of a database, as Caffe's compute_image_mean computes it."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from pycaffe_dist.data.datums import DatumReader, Datums
from pycaffe_dist.data.decoders import Decoders
from pycaffe_dist.data.options import MOST_DECODERS
from pycaffe_dist.data.sources import Source
from pycaffe_dist.data.writers import write_file
from pycaffe_dist.errors import DataError
from pycaffe_dist.kernels.datum import FLOATS, add_datums
from pycaffe_dist.schema import caffe_pb2

PROGRESS = 10000  # records between two calls of `progress`
_CHUNK = 500


def mean_image(source: Source, progress: Callable[[int], None] = lambda count: None) -> np.ndarray:
    """Return the mean of all images, (channels, height, width) float32, summed in order.

    Encoded images keep their channels.  ``progress`` is called with the number of images read.
    Raises `DataError` when a record is not an image or its size differs from the first one's.
    """
    decoders = Decoders(min(MOST_DECODERS, os.cpu_count() or 1))
    reader = DatumReader(source, decoders=decoders)
    total = np.empty(0, np.float32)
    for start in range(0, source.count, _CHUNK):
        datums = reader.read(start, min(_CHUNK, source.count - start))
        reader.decode(datums)
        if not total.size:
            reader.check(datums, 0)
            shape = datums.shape(0)
            total = np.zeros(int(np.prod(shape)), np.float32)
        _add(reader, datums, shape, total)
        done = start + len(datums)
        if done % PROGRESS == 0 or done == source.count:
            progress(done)
    decoders.close()
    return (total / np.float32(source.count)).reshape(shape)


def _add(reader: DatumReader, datums: Datums, shape: tuple[int, ...], total: np.ndarray) -> None:
    done = 0
    while (done := add_datums(datums.records.buffer, datums.table, done, total)) < len(datums):
        reader.check(datums, done)
        image = datums.decoded(done)
        if image is None and datums.table[done, FLOATS]:
            image = datums.floats(done)
        if image is None or image.size != total.size:
            raise DataError(
                f"{reader.describe(datums, done)} has an image of shape {datums.shape(done)} "
                f"(channels, height, width), but the first one's is {shape}"
            )
        total += image.reshape(-1)
        done += 1


def channel_means(mean: np.ndarray) -> list[float]:
    """Return the mean of each channel of a mean image, summed in order in single precision."""
    flat = mean.reshape(len(mean), -1)
    return [float(np.cumsum(row, dtype=np.float32)[-1] / np.float32(row.size)) for row in flat]


def write_mean(path: str, mean: np.ndarray) -> None:
    """Write a mean image (channels, height, width) as Caffe does, byte for byte.

    An existing file is replaced atomically.  Raises `DataError` when this is not possible.
    """
    channels, height, width = mean.shape
    blob = caffe_pb2.BlobProto(
        num=1, channels=channels, height=height, width=width, data=mean.reshape(-1).tolist()
    )
    write_file(path, blob.SerializeToString(), "mean file")
