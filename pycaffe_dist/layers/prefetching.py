"""The base of layers whose batches are prefetched by threads."""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.options import options
from pycaffe_dist.data.partition import Place, Shard, continued
from pycaffe_dist.errors import DataError
from pycaffe_dist.layers.base import Arity, Layer
from pycaffe_dist.log import logger
from pycaffe_dist.schema.reading import require_file

if TYPE_CHECKING:
    from pycaffe_dist.data.decoders import Decoders
    from pycaffe_dist.data.packing import Packer
    from pycaffe_dist.data.prefetch import Loader, Prefetcher
    from pycaffe_dist.data.transformer import Transformer


# A layer logs a warning if it waits for this share of such a time.
_TELL_SHARE = 0.1
_TELL_SECONDS = 20.0


class PrefetchingLayer(Layer):
    """Tops: images (batch_size, C, h, w) and, if there is a second one, labels (batch_size,).

    A subclass makes the loaders.  ``key``, 64 random bits that all ranks and resumed runs share,
    decides on crops, mirrors and orders; ``skip`` is the number of records left out at the start.
    Errors about the data are `DataError`.
    """

    host_only = True
    _packer: Packer | None = None
    bottoms = Arity(0, 0)
    tops = Arity(1, 2)
    has_backward = False

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """The number of records in a batch."""

    @abstractmethod
    def make_loaders(self, readers: int, decoders: Decoders) -> Sequence[Loader]:
        """Return ``readers`` loaders of the same batches; raises DataError."""

    def prepare(self) -> None:
        """Check the layer's parameters and read everything except records."""

    def rand_skip(self) -> int:
        """Return the upper limit of the random number of records to skip at the start."""
        return 0

    def depth(self) -> int | None:
        """Return the number of batches to keep ready, None for the usual number."""
        return None

    def require_files(self) -> None:
        with self.located_errors():
            if mean := self.param.transform_param.mean_file:
                require_file(mean, lambda message: DataError(f"{mean}: {message}"))
            self.require_source()

    def require_source(self) -> None:
        """Raise DataError when the list that the layer reads is missing."""
        for _, own in self.param.ListFields():
            if source := getattr(own, "source", ""):
                require_file(source, lambda message: DataError(f"{source}: {message}"))

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.labels = len(top) > 1
        self.shard = self.context.shard
        self.key = self._shared_random("transform", 2**64)
        most = self.rand_skip()
        self.skip = self._shared_random("rand_skip", most) if most else 0
        if most:
            logger.info("Skipping first %d data points.", self.skip)
        with self.located_errors():
            self.prepare()
        # The time of the last check for waiting, and the total wait until then.
        self._told: tuple[float, float] | None = None
        self._target = top[0].device
        self._prefetcher = self._open(first_batch=0)
        shape = self._prefetcher.top_shapes[0]
        logger.info("output data size: %s", ",".join(map(str, shape)))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for blob, shape in zip(top, self._prefetcher.top_shapes):
            blob.reshape(*shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        for blob in top:
            blob.release()
        with self.located_errors():
            waited = self._prefetcher.seconds_waited
            batch = self._prefetcher.next()
            self.seconds_waited += self._prefetcher.seconds_waited - waited
        self._tell_waiting()
        for blob, values, shape in zip(top, batch, self._prefetcher.top_shapes):
            if self._packer is not None and values.dtype == self._packer.dtype:
                self._packer.unpack(values, shape, blob)
            else:
                blob.adopt(values)

    def close(self) -> None:
        if hasattr(self, "_prefetcher"):
            self._prefetcher.close()

    def state(self) -> dict[str, Any]:
        """Return the place in the records, and the key of orders, crops, mirrors and skips."""
        place = Place.of(self.shard, self._prefetcher.number, self.batch_size)
        return {"key": self.key, "skip": self.skip, "place": asdict(place)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with exactly the next batch of the run, independently of the seed."""
        place = Place(**state["place"])
        self._go_on(state, replace(self.shard, origin=place.origin), place.batch)

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue after the records that the ranks of an earlier run have read."""
        places = [Place(**state["place"]) for state in states]
        self._go_on(states[0], *continued(self.shard, self.batch_size, places))

    def transformer(self) -> Transformer:
        """Return the transformer for the layer's ``transform_param``; raises DataError."""
        from pycaffe_dist.data.transformer import Transformer

        param = self.param.transform_param
        if param.mean_file:
            logger.info("Loading mean file from: %s", param.mean_file)
        return Transformer(param, self.phase, self.context.dtype, self.rank_key())

    def rank_key(self) -> int:
        """Return the key of this rank's crops, mirrors and order."""
        return self.key

    def packer(self, transformer: Transformer) -> Packer | None:
        """Return the packer of images for the GPU, None on the CPU; all loaders share it."""
        from pycaffe_dist.data.packing import Packer

        self._packer = Packer(transformer, self._target) if self._target.is_gpu else None
        return self._packer

    @contextlib.contextmanager
    def located_errors(self) -> Iterator[None]:
        """Add the layer's name and place to errors about the data."""
        try:
            yield
        except DataError as error:
            place = f"{self.context.where}: " if self.context.where else ""
            raise DataError(f"{place}layer '{self.name}' ({self.type}): {error}") from error

    def _open(self, first_batch: int) -> Prefetcher:
        from pycaffe_dist.data.decoders import Decoders
        from pycaffe_dist.data.prefetch import Prefetcher

        wanted = options()
        decoders = Decoders(wanted.decoding_threads(), skip=wanted.on_error == "skip")
        with self.located_errors():
            loaders = self.make_loaders(wanted.reading_threads(), decoders)
            return Prefetcher(loaders, self.depth(), first_batch, self._target)

    def _tell_waiting(self) -> None:
        """Log a warning if the net has waited for data for long."""
        now, waited = time.monotonic(), self.seconds_waited
        since, before = self._told or (now, waited)
        if self._told is not None and now - since <= _TELL_SECONDS:
            return
        self._told = now, waited
        if waited - before > _TELL_SHARE * (now - since):
            logger.warning(
                "Layer '%s' waited for data for %.1f of the last %.1f seconds: give it more threads"
                " (--readers, --decoders), smaller images or a faster disk",
                self.name,
                waited - before,
                now - since,
            )

    def _go_on(self, state: dict[str, Any], shard: Shard, batch: int) -> None:
        self.key, self.skip, self.shard = state["key"], state["skip"], shard
        self._prefetcher.close()
        self._prefetcher, self._told = self._open(first_batch=batch), None

    def _shared_random(self, purpose: str, limit: int) -> int:
        """Return a random number below ``limit``, the same on all ranks."""
        rng = replace(self.context, shard=Shard()).rng(self.name, purpose)
        return int(rng.integers(limit, dtype="uint64"))
