"""Sinks for a net's features: databases of float Datums, or HDF5 files."""

from __future__ import annotations

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from pycaffe_dist.atomic import replacing
from pycaffe_dist.blob import Blob
from pycaffe_dist.data.sources import Writer
from pycaffe_dist.data.writers import create_database, unwinding_when_killed
from pycaffe_dist.errors import DataError
from pycaffe_dist.hdf5 import filling
from pycaffe_dist.schema import caffe_pb2

# The bytes that HDF5 may write besides the rows, for rounding and indices.
_HDF5_SLACK = 2 << 20


class FeatureSink(ABC):
    """Stores a blob's values, batch after batch; ``count`` is the number of samples so far."""

    def __init__(self) -> None:
        self.count = 0

    @abstractmethod
    def add(self, blob: Blob) -> None:
        """Append a batch; the blob's first axis counts samples, a scalar is one."""


class _Datums(FeatureSink):
    def __init__(self, writer: Writer):
        super().__init__()
        self._writer = writer

    def add(self, blob: Blob) -> None:
        datum = caffe_pb2.Datum(channels=blob.channels, height=blob.height, width=blob.width)
        for sample in blob.data.reshape(blob.num, -1):
            del datum.float_data[:]
            datum.float_data.extend(sample.tolist())
            self._writer.put(f"{self.count:010d}".encode(), datum.SerializeToString())
            self.count += 1


class _Rows(FeatureSink):
    def __init__(self, file: Any, name: str):
        super().__init__()
        self._file, self._name = file, name

    def add(self, blob: Blob) -> None:
        rows = np.atleast_1d(blob.data)
        append_rows(self._file, self._name, rows)
        self.count += len(rows)


def append_rows(file: Any, name: str, rows: np.ndarray) -> None:
    """Append rows to the array ``name`` of an open HDF5 file, creating it if necessary.

    Raises OSError, also before the disk is full, because the HDF5 library crashes after a failed
    write.
    """
    disk = os.statvfs(file.filename)
    if rows.nbytes + _HDF5_SLACK > disk.f_bavail * disk.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if name not in file:
        file.create_dataset(name, data=rows, maxshape=(None, *rows.shape[1:]))
    else:
        data = file[name]
        data.resize(len(data) + len(rows), axis=0)
        data[-len(rows) :] = rows
    file.flush()


@contextlib.contextmanager
def create_features(path: str, kind: str, blob_name: str) -> Iterator[FeatureSink]:
    """Create ``path``, a "lmdb", "leveldb" or "hdf5", filled by the body of a ``with``.

    An HDF5 file has a data set named like the blob.  An exception, SIGTERM
    or SIGHUP leaves nothing behind.
    """
    if kind != "hdf5":
        with create_database(path, kind) as writer:
            yield _Datums(writer)
        return
    with unwinding_when_killed(), replacing(path) as new:
        try:
            with filling(new) as file:
                yield _Rows(file, blob_name)
        except (ValueError, TypeError) as error:
            raise DataError(
                f"cannot write features of '{blob_name}' to '{path}': {error}"
            ) from error
