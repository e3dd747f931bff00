"""MemoryData: batches from arrays of a program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import DataError
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.log import logger


@register("MemoryData")
class MemoryData(Layer):
    """Tops: images (batch_size, channels, height, width) and labels (batch_size, 1, 1, 1).

    A program sets the data by :meth:`reset`, without transformation, or by :meth:`add`, with it.
    Forward reads them batch by batch, repeatedly; it sees later changes of the arrays of ``reset``.
    """

    host_only = True
    bottoms = Arity(0, 0)
    tops = Arity(2, 2)
    has_backward = False
    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.memory_data_param
        self.batch_size: int = param.batch_size
        self.image_shape = (param.channels, param.height, param.width)
        if self.batch_size * int(np.prod(self.image_shape)) < 1:
            raise self.error(
                "memory_data_param needs batch_size, channels, height and width above 0, found "
                f"{self.batch_size}, {', '.join(map(str, self.image_shape))}"
            )
        top[0].reshape(self.batch_size, *self.image_shape)
        top[1].reshape(self.batch_size)
        self._images: np.ndarray | None = None
        self._labels = np.empty(0)
        self._position = 0
        self._added = 0  # images added in this run, which number the random transformations
        self._unused = False

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Do nothing: forward sets the shapes, as in Caffe."""

    def reset(self, images: np.ndarray, labels: np.ndarray) -> None:
        """Use ``images`` (n, channels, height, width) and ``labels`` (n values) from now on.

        Raises LayerError unless n is a multiple of the batch size and the shapes fit.
        """
        if images.shape[1:] != self.image_shape:
            raise self.error(f"needs images of shape {self.image_shape}, found {images.shape[1:]}")
        self._check_count(len(images), labels.size)
        if self.param.HasField("transform_param"):
            logger.warning("layer '%s' takes arrays as they are, untransformed", self.name)
        self._take(images, labels)

    def add(self, images: Sequence[np.ndarray], labels: Sequence[int]) -> None:
        """Use images, transformed by ``transform_param``, after all images added before.

        Each image is (channels, H, W), of bytes or floats.  Raises LayerError while images added
        before are unused, and when count or shapes do not fit.
        """
        from pycaffe_dist.data.transformer import Transformer

        if self._unused:
            raise self.error("cannot add data while data added before is unused; run forward")
        self._check_count(len(images), len(labels))
        key = int(self.rng("transform").integers(2**64, dtype="uint64"))
        transformer = Transformer(self.param.transform_param, self.phase, self.context.dtype, key)
        batch = np.empty((len(images), *self.image_shape), self.context.dtype)
        try:
            for image, out in zip(images, batch):
                if transformer.changes:
                    image = transformer.changes.image(image, self._added)
                shape = transformer.output_shape(image.shape)
                if shape != self.image_shape:
                    raise self.error(f"needs images of shape {self.image_shape}, found {shape}")
                transformer.image(image, self._added, out)
                self._added += 1
        except DataError as error:
            raise self.error(str(error)) from error
        self._take(batch, np.asarray(labels))
        self._unused = True

    def _check_count(self, images: int, labels: int) -> None:
        if images != labels:
            raise self.error(f"needs a label for each image, found {images} and {labels}")
        if not images or images % self.batch_size:
            raise self.error(f"needs a multiple of {self.batch_size} images, found {images}")

    def _take(self, images: np.ndarray, labels: np.ndarray) -> None:
        self._images, self._labels = images, labels.reshape(-1)
        self._position = 0

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self._images is None:
            raise self.error("has no data yet: call net.set_input_arrays(data, labels) first")
        begin, end = self._position, self._position + self.batch_size
        top[0].reshape(self.batch_size, *self.image_shape)
        top[1].reshape(self.batch_size, 1, 1, 1)
        top[0].data[...] = self._images[begin:end]
        top[1].data[...] = self._labels[begin:end].reshape(top[1].shape)
        self._position = end % len(self._images)
        if self._position == 0:
            self._unused = False
