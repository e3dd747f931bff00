"""Batches of transformed images and labels from image files."""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np

from pycaffe_dist.data.batches import ImageBatches
from pycaffe_dist.data.datums import Shape
from pycaffe_dist.data.decoders import Decoders
from pycaffe_dist.data.image import read_image, with_shorter_side
from pycaffe_dist.data.image_changes import ImageChanges
from pycaffe_dist.data.image_list import ImageList
from pycaffe_dist.data.order import Order
from pycaffe_dist.data.packing import Packer
from pycaffe_dist.data.partition import Shard
from pycaffe_dist.data.prefetch import new_tops
from pycaffe_dist.data.transformer import Transformer
from pycaffe_dist.errors import DataError


class Reader(Protocol):
    """Reads what belongs to stream indices; ``decoders`` has its threads."""

    decoders: Decoders

    def read(self, index: int) -> tuple[np.ndarray, Any]:
        """Return the image (C, H, W) at stream ``index`` and its label; raises `DataError`."""
        ...

    def describe(self, index: int) -> str:
        """Return the name of the image at stream ``index``."""
        ...


class ImageReader:
    """Reads the images of a list in an order.

    Every path starts with the prefix ``root``; ``size`` (height, width) resizes unless it is
    (0, 0), and ``shorter`` (the shorter side, whether bicubically) unless its side is 0;
    ``changes`` are made then.  If ``decoders`` skip bad images, the next image in the order
    takes a bad one's place.
    """

    def __init__(
        self,
        images: ImageList,
        order: Order,
        root: str = "",
        color: bool = True,
        size: tuple[int, int] = (0, 0),
        decoders: Decoders | None = None,
        changes: ImageChanges | None = None,
        shorter: tuple[int, bool] = (0, False),
    ):
        self._shorter = shorter
        self.decoders = decoders or Decoders()
        self._changes = changes
        self._images, self._order = images, order
        self._root, self._color, self._size = root, color, size

    def read(self, index: int) -> tuple[np.ndarray, int]:
        """Return the image (C, H, W) at stream ``index`` and its label; raises `DataError`."""
        return self.decoders.first_good(self._read, index)

    def describe(self, index: int) -> str:
        """Return the name of the image at stream ``index``."""
        return f"image '{self._path(self._order.number(index))}'"

    def _read(self, index: int) -> tuple[np.ndarray, int]:
        number = self._order.number(index)
        image = read_image(self._path(number), self._color, *self._size)
        if self._shorter[0]:
            image = with_shorter_side(image, *self._shorter)
        if self._changes is not None:
            try:
                image = self._changes.image(image, index)
            except DataError as error:
                raise DataError(f"{self.describe(index)}: {error}") from error
        return image, self._images.labels[number]

    def _path(self, number: int) -> str:
        return f"{self._root}{os.fspath(self._images.paths[number])}"


class ImageLoader(ImageBatches):
    """Loads batches of the images that a ``reader`` returns."""

    def __init__(
        self,
        reader: Reader,
        transformer: Transformer,
        batch_size: int,
        shard: Shard | None = None,
        skip: int = 0,
        labels: bool = True,
        packer: Packer | None = None,
    ):
        super().__init__(transformer, batch_size, shard, skip, labels, packer)
        self._reader = reader
        # Images that `load` read but that had another shape.
        self._spare: dict[int, tuple[np.ndarray, Any]] = {}
        first = int(self._indices(0)[0])
        self._spare[first] = reader.read(first)
        self._shape = self._shape_of(self._spare[first][0])

    def load(self, number: int, tops: list[np.ndarray]) -> int:
        """Load batches ``number``, ``number + 1``, … into ``tops``; return the number of batches.

        Stops before a batch with images of another shape.
        """
        batches = len(tops[0]) // self._batch_size
        indices = np.concatenate([self._indices(number + i) for i in range(batches)])
        fits = self._fill(indices, self._shape, tops, self._packer or self._transformer)
        done = len(fits) if all(fits) else fits.index(False)
        return done // self._batch_size

    def load_other(self, number: int) -> list[np.ndarray]:
        """Return new tops with batch ``number``, whose images may be of any one shape."""
        indices = self._indices(number)
        shape = self._shape_of(self._take(int(indices[0]))[0])
        tops = new_tops(self._top_shapes(shape), self.dtype)
        fits = self._fill(indices, shape, tops, self._transformer)
        if not all(fits):
            odd = int(indices[fits.index(False)])
            raise DataError(
                f"{self._reader.describe(odd)} has shape {self._take(odd)[0].shape} (channels, "
                f"height, width), but its batch began with one of {shape}: all images of a batch "
                "must have one shape (see new_height and new_width)"
            )
        return tops

    def close(self) -> None:
        """Stop the threads that decode images."""
        self._reader.decoders.close()

    def _shape_of(self, image: np.ndarray) -> Shape:
        """Return what the images of a batch must have in common."""
        return image.shape

    def _write_label(self, label: Any, index: int, at: int, tops: list[np.ndarray]) -> None:
        """Write what belongs to image ``at`` of a batch into the other tops."""
        if self._labels:
            tops[1][at] = label

    def _take(self, index: int) -> tuple[np.ndarray, Any]:
        """Return an image and its label, and keep them for the next call."""
        if index not in self._spare:
            self._spare[index] = self._reader.read(index)
        return self._spare[index]

    def _fill(
        self,
        indices: np.ndarray,
        shape: Shape,
        tops: list[np.ndarray],
        transformer: Transformer | Packer,
    ) -> list[bool]:
        """Transform images into tops; return for each whether its shape was ``shape``."""

        def fill(at: int) -> bool:
            index = int(indices[at])
            image, label = spare.get(index) or self._reader.read(index)
            if self._shape_of(image) != shape:
                self._spare[index] = image, label
                return False
            transformer.image(image, index, tops[0][at])
            self._write_label(label, index, at, tops)
            return True

        spare, self._spare = self._spare, {}
        return list(self._reader.decoders.map(fill, range(len(indices))))
