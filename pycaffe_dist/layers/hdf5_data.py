"""HDF5Data: batches from HDF5 files; every top is the data set of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.hdf5_rows import HDF5Rows
from pycaffe_dist.data.partition import Place, continued
from pycaffe_dist.errors import DataError
from pycaffe_dist.layers.base import Arity, Layer, register
from pycaffe_dist.log import logger
from pycaffe_dist.schema.reading import require_file


@register("HDF5Data")
class HDF5Data(Layer):
    """Batches of ``batch_size`` rows; rank r of P takes rows r, r+P, … of every P batches."""

    host_only = True
    bottoms = Arity(0, 0)
    tops = Arity(1, None)
    has_backward = False

    def require_files(self) -> None:
        source = self.param.hdf5_data_param.source
        try:
            require_file(
                source, lambda message: DataError(f"list of HDF5 files '{source}': {message}")
            )
        except DataError as error:
            raise self.error(str(error)) from error

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.hdf5_data_param
        if self.param.HasField("transform_param"):
            raise self.error("does not transform data; remove transform_param")
        if param.batch_size < 1:
            raise self.error(f"needs a batch_size of at least 1, found {param.batch_size}")
        logger.info("Loading list of HDF5 filenames from: %s", param.source)
        names = list(self.param.top)
        try:
            self._rows = HDF5Rows(param.source, names, param.shuffle, self.context.seed)
        except DataError as error:
            raise self.error(str(error)) from error
        logger.info("Number of HDF5 files: %d", len(self._rows.files))
        self._shard, self._batches = self.context.shard, 0

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        batch = self.param.hdf5_data_param.batch_size
        for blob, shape in zip(top, self._rows.shapes):
            blob.reshape(batch, *shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        batch = self.param.hdf5_data_param.batch_size
        first = self._shard.first_record(self._batches, batch)
        positions = first + self._shard.step * np.arange(batch)
        try:
            self._rows.take(positions, [blob.data for blob in top])
        except DataError as error:
            raise self.error(str(error)) from error
        self._batches += 1

    def state(self) -> dict[str, Any]:
        """Return the place in the rows, and the seed that shuffles them."""
        place = Place.of(self._shard, self._batches, self.param.hdf5_data_param.batch_size)
        return {"seed": self._rows.seed, "place": asdict(place)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with exactly the next batch of the run, independently of the seed."""
        place = Place(**state["place"])
        self._rows.seed = state["seed"]
        self._shard, self._batches = replace(self._shard, origin=place.origin), place.batch

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue after the rows that the ranks of an earlier run have read."""
        places = [Place(**state["place"]) for state in states]
        size = self.param.hdf5_data_param.batch_size
        self._rows.seed = states[0]["seed"]
        self._shard, self._batches = continued(self._shard, size, places)
