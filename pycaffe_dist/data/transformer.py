"""Caffe's data transformer: scale, mirror, crop and mean subtraction of images."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from pycaffe_dist.data.datums import Datums, Shape, WriteImage
from pycaffe_dist.data.image_changes import ImageChanges
from pycaffe_dist.errors import DataError
from pycaffe_dist.kernels.interleaved import transform_decoded, transform_interleaved
from pycaffe_dist.kernels.transform import crop_places, transform_datums, transform_image
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.schema.binary import blob_to_array, read_blob

# The indices of the mean image and of the mean values per channel among the kernels' arguments.
_MEAN, _MEAN_VALUES = 3, 4


class Transformer:
    """Applies a ``transform_param`` to images.

    ``phase`` TRAIN crops at random, TEST in the centre; mirroring is random in both, as in Caffe.
    The random choices for an image depend on ``key`` (64 bits) and the image's index only, not on
    its rank or batch, or on the images before it.  Readers make the ``changes`` of whole images, if
    there are any, before the transformation.  Raises `DataError` when parameters contradict each
    other or the mean file is missing.
    """

    def __init__(
        self,
        param: caffe_pb2.TransformationParameter,
        phase: int,
        dtype: Any = np.float32,
        key: int = 0,
    ):
        self.dtype = np.dtype(dtype)
        self.key = key
        self.crop = _crop(param)
        self._train = phase == caffe_pb2.TRAIN
        self._mirror = bool(param.mirror)
        self._scale = self.dtype.type(param.scale)
        self._mean_file = str(param.mean_file)
        self._mean = np.empty((0, 0, 0), self.dtype)
        self._mean_values = np.array(param.mean_value, self.dtype)
        # The kernels' arguments by shape, for shapes that fit; several threads may read them.
        self._settings: dict[Shape, tuple[Any, ...]] = {}
        if param.force_color and param.force_gray:
            raise DataError("transform_param sets both force_color and force_gray")
        # Encoded images are decoded in color (True), in gray (False) or unchanged (None).
        self.color = True if param.force_color else False if param.force_gray else None
        if param.HasField("mean_file"):
            if self._mean_values.size:
                raise DataError("transform_param sets both mean_file and mean_value")
            self._mean = self._read_mean(self._mean_file)
        self.changes = ImageChanges(param, key, self._mean_values, self.crop, self._train)

    def output_shape(self, shape: Shape) -> Shape:
        """Return the (C, h, w) that a (C, H, W) image is transformed to.

        Raises `DataError` when crop size, mean file or mean values do not fit the image.
        """
        channels, height, width = shape
        if shape not in self._settings:
            self._check(shape)
        return (channels, *(self.crop or (height, width)))

    @property
    def drawing(self) -> tuple[np.uint64, bool, bool]:
        """The arguments for crops: the key, whether crops are random, and whether to mirror."""
        return np.uint64(self.key), self._train, self._mirror

    def affine(self, channels: int) -> tuple[np.ndarray, Any]:
        """Return the mean, an image (C, H, W) or one value per channel, and the scale."""
        if self._mean.size:
            return self._mean, self._scale
        values = self._mean_values if self._mean_values.size else np.zeros(1, self.dtype)
        return np.ascontiguousarray(np.broadcast_to(values, channels)), self._scale

    def decoded(self, datums: Datums, shape: Shape, out: np.ndarray) -> WriteImage:
        """Return a function that transforms color images of ``shape`` to ``out`` (n, C, h, w)."""
        size, crop, indices = shape[1:], self.output_shape(shape)[1:], (datums.first, datums.step)
        places = crop_places(size, crop, len(datums), indices, *self.drawing)
        return partial(transform_decoded, places, *self._settings[shape][_MEAN:], out)

    def image(self, pixels: np.ndarray, index: int, out: np.ndarray) -> None:
        """Transform ``pixels`` (C, H, W), uint8 or floats of any strides, to ``out`` (C, h, w).

        ``out`` has this transformer's dtype and the `output_shape`.
        """
        shape = pixels.shape
        if shape not in self._settings:
            self._check(shape)
        settings = self._settings[shape]
        interleaved = pixels.transpose(1, 2, 0)
        if shape[0] == 3 and interleaved.flags.c_contiguous:
            flat = interleaved.reshape(-1)
            transform_interleaved(flat, shape[1], shape[2], index, *settings, out)
        else:
            transform_image(pixels, index, *settings, out)

    def datums(
        self, datums: Datums, begin: int, shape: Shape, out: np.ndarray, labels: np.ndarray
    ) -> int:
        """Transform Datums from number ``begin`` on to ``out`` (n, C, h, w) in one call.

        ``labels`` is (n,), or of size 0.  Returns the number of the first Datum that is encoded,
        damaged or not of ``shape``, or n.
        """
        self.output_shape(shape)
        records, indices = datums.records, (datums.first, datums.step)
        return transform_datums(
            records.buffer,
            records.values,
            datums.table,
            begin,
            shape[1],
            shape[2],
            indices,
            *self._settings[shape],
            out,
            labels,
        )

    def mean_crop(self, channels: int) -> np.ndarray:
        """Return the mean of crops, (C, h, w) or (C, 1, 1); there must be a crop size."""
        assert self.crop is not None
        shape = self._mean.shape if self._mean.size else (channels, *self.crop)
        if shape[0] != channels:
            raise DataError(
                f"mean file '{self._mean_file}' has {shape[0]} channels, the images {channels}"
            )
        self.output_shape(shape)
        if not self._mean.size:
            return self._settings[shape][_MEAN_VALUES].reshape(channels, 1, 1)
        side, offset = self.crop[1], (shape[2] - self.crop[1]) // 2
        return self._mean[:, offset : offset + side, offset : offset + side]

    def _read_mean(self, path: str) -> np.ndarray:
        mean = blob_to_array(read_blob(path))
        if not 3 <= mean.ndim <= 4 or (mean.ndim == 4 and mean.shape[0] != 1):
            raise DataError(
                f"mean file '{path}' should hold one image (channels, height, width), "
                f"found a blob of shape {mean.shape}"
            )
        return np.ascontiguousarray(mean.reshape(mean.shape[-3:]), self.dtype)

    def _check(self, shape: Shape) -> None:
        channels, height, width = shape
        if self.crop is not None and (self.crop[0] > height or self.crop[1] > width):
            wanted = "×".join(map(str, dict.fromkeys(self.crop)))
            raise DataError(
                f"crop_size {wanted} is larger than the image, which is {height} high "
                f"and {width} wide"
            )
        if self._mean.size and self._mean.shape != shape:
            raise DataError(
                f"mean file '{self._mean_file}' is for images of (channels, height, width) "
                f"{self._mean.shape}, found an image of {shape}"
            )
        if self._mean_values.size not in (0, 1, channels):
            raise DataError(
                f"transform_param needs 1 mean_value or one for each of {channels} channels, "
                f"found {self._mean_values.size}"
            )
        mean, scale = self.affine(channels)
        values = mean if mean.ndim == 1 else np.zeros(channels, self.dtype)
        self._settings[shape] = (*self.drawing, self._mean, values, scale)


def _crop(param: caffe_pb2.TransformationParameter) -> tuple[int, int] | None:
    """Return a ``transform_param``'s crop size (height, width), None for whole images."""
    sides = param.crop_h or param.crop_height, param.crop_w or param.crop_width
    if param.crop_size:
        return (int(param.crop_size),) * 2
    if not any(sides):
        return None
    if not all(sides):
        raise DataError(
            "transform_param needs a crop's height and width (crop_h and crop_w, or crop_height "
            f"and crop_width), found {sides[0]} and {sides[1]}"
        )
    return sides
