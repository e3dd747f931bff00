"""What loaders of batches of transformed images share: shapes of tops, and indices of records."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.data.datums import Shape
from pycaffe_dist.data.packing import Packer
from pycaffe_dist.data.partition import Shard
from pycaffe_dist.data.prefetch import Buffer, Loader
from pycaffe_dist.data.transformer import Transformer


class ImageBatches(Loader):
    """A loader of a rank's batches, numbered from 0; batch b depends on b only.

    Its tops are images (batch_size, C, h, w) and, with ``labels``, labels (batch_size,), of the
    transformer's dtype.  The first ``skip`` records of the stream are skipped.  With a ``packer``,
    `load` makes rows of bytes instead of images.  One thread at a time uses a loader.
    """

    # The axes of a label.
    label_axes: tuple[int, ...] = ()
    # The usual shape of images; some batches may have another one.
    _shape: Shape

    def __init__(
        self,
        transformer: Transformer,
        batch_size: int,
        shard: Shard | None,
        skip: int,
        labels: bool,
        packer: Packer | None,
    ):
        self.dtype = transformer.dtype
        self._transformer, self._packer = transformer, packer
        self._batch_size = batch_size
        self._shard = shard or Shard()
        self._skip = skip
        self._labels = labels

    def top_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of a batch's tops, expected from the first record."""
        return self._top_shapes(self._shape)

    def buffers(self) -> list[Buffer]:
        """Return the arrays for `load`: the tops, or rows of bytes in place of the first."""
        shapes = self._top_shapes(self._shape)
        found = [Buffer(shape, self.dtype) for shape in shapes]
        if self._packer is not None:
            row = self._packer.row_shape(self._shape)
            found[0] = Buffer((shapes[0][0], *row), self._packer.dtype)
        return found

    def _top_shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        n = self._batch_size
        data = (n, *self._transformer.output_shape(shape))
        return [data, (n, *self.label_axes)] if self._labels else [data]

    def _indices(self, number: int) -> np.ndarray:
        """Return the stream indices of a batch."""
        first = self._skip + self._shard.first_record(number, self._batch_size)
        return first + self._shard.step * np.arange(self._batch_size)
