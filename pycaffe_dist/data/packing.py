"""Batches of uint8 images that a GPU mirrors and scales: a quarter of the bytes to copy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.datums import Datums, Shape, WriteImage
from pycaffe_dist.data.transformer import Transformer
from pycaffe_dist.device import use
from pycaffe_dist.kernels.packing import pack_datums, pack_decoded, pack_image, row_bytes


class Packer:
    """Transforms like ``transformer`` in two steps; ``gpu`` does the second, ``unpack``.

    The first step copies the pixels of crops to rows of bytes, one for each image.  The final
    values are the same, bit for bit, as the transformer's.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, transformer: Transformer, gpu: Any):
        self._transformer, self._gpu = transformer, gpu
        self._mean: Any = None  # on the GPU

    def row_shape(self, shape: Shape) -> tuple[int]:
        """Return the shape of the row for a (C, H, W) image."""
        return (row_bytes(self._transformer.output_shape(shape)),)

    def decoded(self, datums: Datums, shape: Shape, out: np.ndarray) -> WriteImage:
        """Return a function that packs decoded images to rows, like `Transformer.decoded`."""
        crop = self._transformer.output_shape(shape)
        indices = datums.first, datums.step
        return partial(pack_decoded, *indices, *self._transformer.drawing, crop, out)

    def image(self, pixels: np.ndarray, index: int, out: np.ndarray) -> None:
        """Pack uint8 ``pixels`` (C, H, W) to ``out``, of the `row_shape`."""
        crop = self._transformer.output_shape(pixels.shape)
        drawn = index, *self._transformer.drawing, crop, out
        interleaved = pixels.transpose(1, 2, 0)
        if interleaved.flags.c_contiguous:
            pack_image(interleaved.reshape(1, len(interleaved), -1), True, *drawn)
        else:
            pack_image(pixels, False, *drawn)

    def datums(
        self, datums: Datums, begin: int, shape: Shape, out: np.ndarray, labels: np.ndarray
    ) -> int:
        """Pack Datums of bytes, like `Transformer.datums`; ``begin`` is 0."""
        crop = self._transformer.output_shape(shape)
        return pack_datums(
            datums.records.buffer,
            datums.table,
            shape[1:],
            (datums.first, datums.step),
            *self._transformer.drawing,
            crop,
            out,
            labels,
        )

    def unpack(self, rows: np.ndarray, shape: tuple[int, ...], top: Blob) -> None:
        """Let the GPU transform packed images to the data of ``top``, of ``shape`` (n, C, h, w).

        ``rows`` (n, bytes) must not change until ``top`` is released.
        """
        from pycaffe_dist.kernels.cuda.packing import unpack_images

        gpu = self._gpu
        mean, scale = self._transformer.affine(shape[1])
        if self._mean is None:
            with use(gpu):
                self._mean = gpu.to_device(mean)

        def write(target: Any) -> None:
            copy = gpu.empty(rows.shape, rows.dtype)
            gpu.copy_to_device(rows, copy)
            unpack_images(copy, self._mean, float(scale), target.reshape(shape))

        top.renew(shape, write)
