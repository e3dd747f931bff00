"""Sinks for a net's features: databases of float Datums, or HDF5 files."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.writers import Writer, create_database
from pycaffe_dist.errors import DataError
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.snapshot.atomic import replacing


class FeatureSink(ABC):
    """Takes a blob's values, batch after batch; ``count`` samples so far."""

    def __init__(self) -> None:
        self.count = 0

    @abstractmethod
    def add(self, blob: Blob) -> None:
        """Append a batch; the blob's first axis counts samples."""


class _Datums(FeatureSink):
    def __init__(self, writer: Writer):
        super().__init__()
        self._writer = writer

    def add(self, blob: Blob) -> None:
        datum = caffe_pb2.Datum(channels=blob.channels, height=blob.height, width=blob.width)
        for sample in blob.data.reshape(blob.shape[0], -1):
            del datum.float_data[:]
            datum.float_data.extend(sample.tolist())
            self._writer.put(f"{self.count:010d}".encode(), datum.SerializeToString())
            self.count += 1


class _Rows(FeatureSink):
    def __init__(self, file: Any, name: str):
        super().__init__()
        self._file, self._name = file, name

    def add(self, blob: Blob) -> None:
        rows: np.ndarray = blob.data
        if self._name not in self._file:
            shape = (None, *rows.shape[1:])
            self._file.create_dataset(self._name, data=rows, maxshape=shape)
        else:
            data = self._file[self._name]
            data.resize(self.count + len(rows), axis=0)
            data[self.count :] = rows
        self.count += len(rows)


@contextlib.contextmanager
def create_features(path: str, kind: str, blob_name: str) -> Iterator[FeatureSink]:
    """Create ``path``, a "lmdb", "leveldb" or "hdf5", filled by the body of a ``with``.

    An HDF5 file has a data set named like the blob.  An exception leaves nothing behind.
    """
    if kind != "hdf5":
        with create_database(path, kind) as writer:
            yield _Datums(writer)
        return
    import h5py

    with replacing(path) as new:
        try:
            with h5py.File(new, "w") as file:
                yield _Rows(file, blob_name)
        except (ValueError, TypeError) as error:
            raise DataError(
                f"cannot write features of '{blob_name}' to '{path}': {error}"
            ) from error
