"""Data layer: batches of images and labels from an LMDB or LevelDB."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.partition import Place, Shard, continued
from pycaffe_dist.errors import DataError
from pycaffe_dist.layers.base import Arity, Layer, register
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2

if TYPE_CHECKING:
    from pycaffe_dist.data.prefetch import Prefetcher


@register("Data")
class Data(Layer):
    """Tops: images (batch_size, C, h, w) and, if there is a second one, labels (batch_size,).

    The images' shape is that of the database's first record after ``transform_param``; a batch of
    images of another shape reshapes the tops, as in Caffe.  This rank's part of the records is
    given by the context's shard.  ``data_param.rand_skip`` leaves out fewer than that many records
    at the start, the same number on all ranks.  A thread reads ``data_param.prefetch`` batches
    ahead; where that is not given 4, or more if they are small.  Errors about the data are
    `DataError`.
    """

    bottoms = Arity(0, 0)
    tops = Arity(1, 2)
    has_backward = False

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.data_param
        if not param.source:
            raise self.error("data_param needs a source, the database's folder")
        if param.batch_size < 1:
            raise self.error("data_param needs a batch_size of at least 1")
        if param.prefetch < 1:
            raise self.error("data_param.prefetch must be at least 1, found 0")
        self._labels = len(top) > 1
        self._shard = self.context.shard
        self._key = self._shared_random("transform", 2**64)
        self._skip = self._shared_random("rand_skip", param.rand_skip) if param.rand_skip else 0
        self._prefetcher = self._open(first_batch=0)
        shape = self._prefetcher.top_shapes[0]
        logger.info("output data size: %s", ",".join(map(str, shape)))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for blob, shape in zip(top, self._prefetcher.top_shapes):
            blob.reshape(*shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        with self._located_errors():
            batch = self._prefetcher.next()
        for blob, values in zip(top, batch):
            blob.reshape(*values.shape)
            blob.data[...] = values

    def close(self) -> None:
        if hasattr(self, "_prefetcher"):
            self._prefetcher.close()

    def state(self) -> dict[str, Any]:
        """Return the place in the records and what crops, mirrors and skips."""
        size = self.param.data_param.batch_size
        place = Place.of(self._shard, self._prefetcher.number, size)
        return {"key": self._key, "skip": self._skip, "place": asdict(place)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with the very batch that the run would have seen next, whatever its seed."""
        place = Place(**state["place"])
        self._go_on(state, replace(self._shard, origin=place.origin), place.batch)

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on after the records that the ranks of an earlier run, maybe others, have read."""
        places = [Place(**state["place"]) for state in states]
        self._go_on(states[0], *continued(self._shard, self.param.data_param.batch_size, places))

    def _go_on(self, state: dict[str, Any], shard: Shard, batch: int) -> None:
        self._key, self._skip, self._shard = state["key"], state["skip"], shard
        self._prefetcher.close()
        self._prefetcher = self._open(first_batch=batch)

    @property
    def seconds_waited(self) -> float:
        """How long forward has waited for data, all batches together."""
        return self._prefetcher.seconds_waited

    def _open(self, first_batch: int) -> Prefetcher:
        from pycaffe_dist.data.loader import DatumLoader
        from pycaffe_dist.data.prefetch import Prefetcher
        from pycaffe_dist.data.sources import open_source
        from pycaffe_dist.data.transformer import Transformer

        param, context = self.param.data_param, self.context
        backend = caffe_pb2.DataParameter.DB.Name(param.backend).lower()
        with self._located_errors():
            if self.param.transform_param.mean_file:
                logger.info("Loading mean file from: %s", self.param.transform_param.mean_file)
            transformer = Transformer(
                self.param.transform_param, self.phase, context.dtype, self._key
            )
            source = open_source(param.source, backend)
            logger.info("Opened %s %s", backend, param.source)
            loader = DatumLoader(
                source,
                transformer,
                param.batch_size,
                self._shard,
                self._skip,
                self._labels,
            )
            depth = param.prefetch if param.HasField("prefetch") else None
            return Prefetcher(loader, depth, first_batch)

    def _shared_random(self, purpose: str, limit: int) -> int:
        """Return a random number below ``limit``, the same on all ranks."""
        rng = replace(self.context, shard=Shard()).rng(self.name, purpose)
        return int(rng.integers(limit, dtype="uint64"))

    @contextlib.contextmanager
    def _located_errors(self) -> Iterator[None]:
        """Add the layer's name and place to errors about the data."""
        try:
            yield
        except DataError as error:
            place = f"{self.context.where}: " if self.context.where else ""
            raise DataError(f"{place}layer '{self.name}' ({self.type}): {error}") from error
