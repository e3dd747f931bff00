"""HDF5Output layer: writes its bottoms to an HDF5 file."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.features import append_rows
from pycaffe_dist.layers.base import Arity, Layer, register
from pycaffe_dist.log import logger

DATA_SETS = ("data", "label")


@register("HDF5Output")
class HDF5Output(Layer):
    """Bottoms: data and labels with the same number of rows, the file's ``data`` and ``label``.

    Both have four axes in the file, as in Caffe; later batches are appended (Caffe fails on a
    second batch).  An existing file is replaced.  On several ranks, rank r > 0 writes to its own
    file, whose name ends in ``.r``.
    """

    host_only = True
    bottoms = Arity(2, 2)
    tops = Arity(0, 0)
    has_backward = False

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        import h5py

        name = self.param.hdf5_output_param.file_name
        if not name:
            raise self.error("hdf5_output_param needs a file_name")
        rank = self.context.shard.rank
        self.file_name = f"{name}.{rank}" if rank else name
        try:
            self._file: Any = h5py.File(self.file_name, "w")
        except OSError as error:
            raise self.error(f"cannot write '{self.file_name}': {error}") from error

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for blob in bottom:
            if blob.ndim > 4:
                raise self.error(f"writes blobs of at most 4 axes, found shape {blob.shape}")
        if bottom[0].num != bottom[1].num:
            raise self.error(
                f"needs as many labels as data, found {bottom[0].num} and {bottom[1].num} rows"
            )

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        try:
            for name, blob in zip(DATA_SETS, bottom):
                rows = blob.data.reshape(blob.num, blob.channels, blob.height, -1)
                append_rows(self._file, name, rows)
        except (OSError, ValueError, TypeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise self.error(f"cannot write '{self.file_name}': {reason}") from error
        logger.info("Successfully saved %d rows", bottom[0].num)

    def close(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()
