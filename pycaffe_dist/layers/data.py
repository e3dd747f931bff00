"""Data layer: batches of images and labels from an LMDB or LevelDB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.data.options import options
from pycaffe_dist.data.partition import partition_name
from pycaffe_dist.layers.base import register
from pycaffe_dist.layers.prefetching import PrefetchingLayer
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2

if TYPE_CHECKING:
    from pycaffe_dist.data.decoders import Decoders
    from pycaffe_dist.data.prefetch import Loader
    from pycaffe_dist.data.sources import Source
    from pycaffe_dist.data.sources.cached import RecordCache
    from pycaffe_dist.data.transformer import Transformer


@register("Data")
class Data(PrefetchingLayer):
    """Tops: images (batch_size, C, h, w) and, if there is a second one, labels (batch_size,).

    The database's first record after ``transform_param`` sets the images' shape; a batch with
    another shape reshapes the tops, as in Caffe.  The context's shard selects this rank's records.
    ``data_param.rand_skip`` skips a random number of records below it at the start, the same on all
    ranks; ``data_param.shuffle`` puts the records in a new order in every epoch.  Threads read
    ``data_param.prefetch`` batches ahead, by default 4, or more if they are small.  With
    `ReadingOptions.cache` the records are read from memory.
    """

    _cache: RecordCache | None = None

    @property
    def batch_size(self) -> int:
        return self.param.data_param.batch_size

    def prepare(self) -> None:
        param = self.param.data_param
        if not param.source:
            raise self.error("data_param needs a source, the database's folder")
        if param.batch_size < 1:
            raise self.error("data_param needs a batch_size of at least 1")
        if param.prefetch < 1:
            raise self.error("data_param.prefetch must be at least 1, found 0")

    def require_source(self) -> None:
        from pycaffe_dist.data.sources import database_class, file_of

        kind, path = database_class(self._backend), self._path
        if path and kind.file:
            file_of(path, kind)

    def rand_skip(self) -> int:
        return self.param.data_param.rand_skip

    def depth(self) -> int | None:
        param = self.param.data_param
        return param.prefetch if param.HasField("prefetch") else None

    def make_loaders(self, readers: int, decoders: Decoders) -> Sequence[Loader]:
        transformer, shard = self.transformer(), self.shard
        make = self.loader_maker(transformer)
        source = self._source(transformer, decoders)
        if not options().shared_file_system:
            shard = shard.alone()
        wanted = self.batch_size, shard, self.skip, self.labels, decoders
        packer = self.packer(transformer)
        return [make(source, transformer, *wanted, packer) for _ in range(readers)]

    def loader_maker(self, transformer: Transformer) -> Callable[..., Loader]:
        """Return what makes a loader from `DatumLoader`'s arguments; raises DataError."""
        from pycaffe_dist.data.loader import DatumLoader

        return DatumLoader

    def rank_key(self) -> int:
        # If ranks have their own databases, records have the same indices on all ranks, but should
        # have different crops, mirrors and orders.
        if options().shared_file_system or self.shard.size == 1:
            return self.key
        rng = np.random.default_rng([self.key, self.shard.rank])
        return int(rng.integers(2**64, dtype="uint64"))

    def close(self) -> None:
        super().close()
        if self._cache is not None:
            self._cache.close()

    @property
    def _backend(self) -> str:
        param = self.param.data_param
        return param.backend_name or caffe_pb2.DataParameter.DB.Name(param.backend).lower()

    @property
    def _path(self) -> str:
        path = self.param.data_param.source
        own = not options().shared_file_system
        return partition_name(path, self.context.shard.rank) if own and path else path

    def _source(self, transformer: Transformer, decoders: Decoders) -> Source:
        from pycaffe_dist.data.order import Order
        from pycaffe_dist.data.sources import open_source
        from pycaffe_dist.data.sources.cached import CachedSource, RecordCache
        from pycaffe_dist.data.sources.shuffled import ShuffledSource

        param, backend, path = self.param.data_param, self._backend, self._path
        cached = options().cache
        if cached != "none":
            self._cache = self._cache or RecordCache(
                path,
                backend,
                options().cache_bytes(),
                cached == "images",
                transformer.color,
                decoders,
            )
            self._note_records(self._cache.count)
            order = Order(self._cache.count, param.shuffle, self.rank_key())
            return CachedSource(self._cache, order)
        source = open_source(path, backend)
        logger.info("Opened %s %s", backend, path)
        if not source.counts_slowly:
            self._note_records(source.count)
        return ShuffledSource(source, self.rank_key()) if param.shuffle else source

    def _note_records(self, count: int) -> None:
        """Note the number of records of this rank's database."""
        self.records = count if options().shared_file_system else count * self.context.shard.size
