"""Batches of transformed images and labels from a database's Datums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pycaffe_dist.data.batches import ImageBatches
from pycaffe_dist.data.datums import DatumReader, Datums, Shape
from pycaffe_dist.data.decoders import Decoders
from pycaffe_dist.data.packing import Packer
from pycaffe_dist.data.partition import Shard
from pycaffe_dist.data.prefetch import new_tops
from pycaffe_dist.data.sources import Source
from pycaffe_dist.data.transformer import Transformer
from pycaffe_dist.errors import DataError
from pycaffe_dist.kernels.datum import ENCODED, FLOATS, LABEL
from pycaffe_dist.kernels.interleaved import CHANNELS as COLORS


class Tops(NamedTuple):
    """The arrays for records of one shape, and the transformation."""

    shape: Shape
    transformer: Transformer | Packer
    data: np.ndarray
    labels: np.ndarray


class DatumLoader(ImageBatches):
    """Loads batches from a source of Datums.

    A ``packer`` has no effect if the first record has no bytes.  Several loaders may share a source
    and decoders.
    """

    def __init__(
        self,
        source: Source,
        transformer: Transformer,
        batch_size: int,
        shard: Shard | None = None,
        skip: int = 0,
        labels: bool = True,
        decoders: Decoders | None = None,
        packer: Packer | None = None,
    ):
        super().__init__(transformer, batch_size, shard, skip, labels, packer)
        self._decoders = decoders or Decoders()
        self._reader = self._make_reader(source, transformer)
        first = self._reader.read(skip + self._shard.first_record(0, batch_size), 1)
        self._reader.decode(first)
        self._reader.check(first, 0)
        self._shape = first.shape(0)
        if first.table[0, FLOATS]:
            self._packer = None
        # The first batch number of the last read, and its records: `load_other` follows `load`.
        self._held = (0, first)

    def load(self, number: int, tops: list[np.ndarray]) -> int:
        """Load batches ``number``, ``number + 1``, … into ``tops``; return the number of batches.

        The tops' first axis has room for one or several batches.  Stops before a batch with images
        of another shape, which `load_other` loads.
        """
        datums = self._read(number, len(tops[0]) // self._batch_size)
        transformer = self._packer or self._transformer
        return self._fill(datums, self._shape, tops, transformer) // self._batch_size

    def load_other(self, number: int) -> list[np.ndarray]:
        """Return new tops with batch ``number``, whose images may be of any one shape."""
        datums = self._read(number, 1)
        self._reader.decode(datums.part(0, 1))
        shape = datums.shape(0)
        tops = new_tops(self._top_shapes(shape), self.dtype)
        done = self._fill(datums, shape, tops, self._transformer)
        if done < self._batch_size:
            raise DataError(
                f"{self._reader.describe(datums, done)} has an image of shape "
                f"{datums.shape(done)} (channels, height, width), but its batch began with one of "
                f"{shape}: all images of a batch must have one shape"
            )
        return tops

    def close(self) -> None:
        """Stop the threads that decode images, if there are any, and close the source."""
        self._decoders.close()
        self._reader.close()

    def _make_reader(self, source: Source, transformer: Transformer) -> DatumReader:
        return DatumReader(source, transformer.color, self._decoders, transformer.changes or None)

    def _read(self, number: int, batches: int) -> Datums:
        """Return the records of ``batches`` batches, or of fewer."""
        size, shard = self._batch_size, self._shard
        first, datums = self._held
        begin = (number - first) * size
        if begin < 0 or begin + size > len(datums):
            many = batches if shard.contiguous else 1
            start = self._skip + shard.first_record(number, size)
            datums, begin = self._reader.read(start, many * size, shard.step), 0
            self._held = (number, datums)
        return datums.part(begin, min(begin + batches * size, len(datums)))

    def _fill(
        self,
        datums: Datums,
        shape: Shape,
        tops: list[np.ndarray],
        transformer: Transformer | Packer,
    ) -> int:
        """Transform records into tops until one has another shape; return the number of records."""
        data = tops[0][: len(datums)]
        labels = tops[1].reshape(-1) if self._labels else np.empty(0, self.dtype)
        if not datums.table[:, ENCODED].any():
            done = transformer.datums(datums, 0, shape, data, labels)
            if done < len(data):
                self._reader.check(datums, done)
            return done
        to = Tops(shape, transformer, data, labels)
        fits = self._fill_one_by_one(datums, to)
        if self._labels:  # only now: an image that replaces a bad one has its own label
            labels[: len(datums)] = datums.table[:, LABEL]
        return len(fits) if all(fits) else fits.index(False)

    def _fill_one_by_one(self, datums: Datums, to: Tops) -> list[bool]:
        """Decode and transform each record while it is in the cache; return which records fit."""
        encoded = datums.table[:, ENCODED].tolist()

        def fill(i: int) -> bool:
            return (
                self._fill_encoded(datums, i, to) if encoded[i] else self._fill_raw(datums, i, to)
            )

        plain = to.shape[0] == COLORS and all(encoded) and self._reader.changes is None
        if not plain or datums.images:
            return list(self._decoders.map(fill, range(len(datums))))
        # A decoder evicts most of the interpreter from the caches: Python code after it takes
        # several times as long.  So as much as possible is done before.
        write = to.transformer.decoded(datums, to.shape, to.data)
        decode = self._reader.color_decoder(datums, to.shape, write)
        fits = self._decoders.map(decode, range(len(datums)))
        return [fit or fill(i) for i, fit in enumerate(fits)]

    def _fill_raw(self, datums: Datums, i: int, to: Tops) -> bool:
        part, here = datums.part(i, i + 1), slice(i, i + 1)
        done = to.transformer.datums(part, 0, to.shape, to.data[here], to.labels[here])
        if not done:
            self._reader.check(datums, i)
        return bool(done)

    def _fill_encoded(self, datums: Datums, i: int, to: Tops) -> bool:
        """Decode and transform record ``i``; keep its image if it has another shape."""
        index = datums.index(i)
        image = datums.images.get(index)
        if image is None:
            image = self._reader.image(datums, i)
        unpacked = to.transformer is self._packer and image.dtype != self._packer.dtype
        if image.shape != to.shape or unpacked:
            datums.images[index] = image
            return False
        to.transformer.image(image, index, to.data[i])
        return True
