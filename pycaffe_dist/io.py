"""Images, Datums and BlobProtos to and from arrays, and preprocessing, under pycaffe's names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from pycaffe_dist.api.preprocessing import Transformer
from pycaffe_dist.api.resizing import resize_image
from pycaffe_dist.errors import ArgumentError, DataError
from pycaffe_dist.schema import caffe_pb2

__all__ = [
    "Transformer",
    "array_to_blobproto",
    "array_to_datum",
    "arraylist_to_blobprotovector_str",
    "blobproto_to_array",
    "blobprotovector_str_to_arraylist",
    "caffe_pb2",
    "datum_to_array",
    "load_image",
    "oversample",
    "resize_image",
]

# The shares of red, green and blue in brightness (Rec. 709), the same as in scikit-image.
_BRIGHTNESS = np.array([0.2125, 0.7154, 0.0721], np.float32)


def blobproto_to_array(blob: caffe_pb2.BlobProto, return_diff: bool = False) -> np.ndarray:
    """Return the data of a BlobProto, or its diff, as an array of its shape.

    Raises ArgumentError, a ValueError, when the number of values does not fit the shape.
    """
    values = blob.diff or blob.double_diff if return_diff else blob.data or blob.double_data
    array = np.array(values, np.float64)
    legacy = ("num", "channels", "height", "width")
    if any(blob.HasField(field) for field in legacy):
        shape = tuple(getattr(blob, field) for field in legacy)
    else:
        shape = tuple(blob.shape.dim)
    try:
        return array.reshape(shape)
    except ValueError:
        raise ArgumentError(f"a blob of shape {shape} cannot hold {array.size} values") from None


def array_to_blobproto(arr: np.ndarray, diff: np.ndarray | None = None) -> caffe_pb2.BlobProto:
    """Return a BlobProto of an array, and of a diff of the same shape, if given."""
    blob = caffe_pb2.BlobProto()
    blob.shape.dim.extend(arr.shape)
    blob.data.extend(arr.astype(float).flat)
    if diff is not None:
        blob.diff.extend(diff.astype(float).flat)
    return blob


def arraylist_to_blobprotovector_str(arraylist: Iterable[np.ndarray]) -> bytes:
    """Return a serialized BlobProtoVector of arrays."""
    blobs = [array_to_blobproto(array) for array in arraylist]
    return caffe_pb2.BlobProtoVector(blobs=blobs).SerializeToString()


def blobprotovector_str_to_arraylist(str: bytes) -> list[np.ndarray]:
    """Return the arrays of a serialized BlobProtoVector."""
    vector = caffe_pb2.BlobProtoVector.FromString(str)
    return [blobproto_to_array(blob) for blob in vector.blobs]


def array_to_datum(arr: np.ndarray, label: int | None = None) -> caffe_pb2.Datum:
    """Return a Datum of an array (channels, height, width): bytes for uint8, else floats.

    Raises ArgumentError, a ValueError, for another number of axes.
    """
    if arr.ndim != 3:
        raise ArgumentError(
            f"Incorrect array shape {arr.shape}: a Datum needs (channels, height, width)"
        )
    datum = caffe_pb2.Datum()
    datum.channels, datum.height, datum.width = arr.shape
    if arr.dtype == np.uint8:
        datum.data = arr.tobytes()
    else:
        datum.float_data.extend(arr.astype(float).flat)
    if label is not None:
        datum.label = int(label)
    return datum


def datum_to_array(datum: caffe_pb2.Datum) -> np.ndarray:
    """Return the array (channels, height, width) of a Datum: uint8 for bytes, else float64.

    Raises ArgumentError for an encoded image, which must be decoded first.
    """
    if datum.encoded:
        raise ArgumentError(
            "the Datum holds an encoded image; decode its data: "
            "cv2.imdecode(np.frombuffer(datum.data, np.uint8), -1)"
        )
    if datum.data:
        array = np.frombuffer(bytearray(datum.data), np.uint8)
    else:
        array = np.array(datum.float_data, np.float64)
    return array.reshape(datum.channels, datum.height, datum.width)


def load_image(filename: str | os.PathLike[str], color: bool = True) -> np.ndarray:
    """Return an image as float32 in [0, 1]: (H, W, 3) in RGB, or (H, W, 1) without ``color``.

    Gray images are repeated for the three channels; transparency is dropped.  Raises DataError.
    """
    from pycaffe_dist.data.image import decoded

    try:
        encoded = np.fromfile(filename, np.uint8)
    except OSError as error:
        raise DataError(f"cannot read image '{filename}': {error.strerror}") from None
    pixels = decoded(encoded, None)
    if pixels is None:
        raise DataError(f"'{filename}' is not an image, or its format is unknown")
    image = pixels.astype(np.float32)
    if pixels.dtype.kind == "u":
        image /= np.iinfo(str(pixels.dtype)).max
    if image.ndim == 2:
        image = image[:, :, np.newaxis]
        return np.repeat(image, 3, axis=2) if color else image
    image = np.ascontiguousarray(image[:, :, 2::-1])
    return image if color else (image @ _BRIGHTNESS)[:, :, np.newaxis]


def oversample(
    images: Sequence[np.ndarray] | np.ndarray, crop_dims: Sequence[int] | np.ndarray
) -> np.ndarray:
    """Return ten crops (10·N, *crop_dims, K) of each image: corners, centre, and all mirrored.

    The images (H, W, K) have the same size.  Raises ArgumentError when they are too small.
    """
    height, width, channels = images[0].shape
    crop_height, crop_width = (int(size) for size in crop_dims)
    low, right = height - crop_height, width - crop_width
    if low < 0 or right < 0:
        raise ArgumentError(
            f"images of {height} x {width} are too small for crops of {crop_height} x {crop_width}"
        )
    places = [(0, 0), (0, right), (low, 0), (low, right), (int(low / 2.0), int(right / 2.0))]
    crops = np.empty((10 * len(images), crop_height, crop_width, channels), np.float32)
    for number, image in enumerate(images):
        ten = crops[10 * number : 10 * number + 10]
        for crop, (top, left) in zip(ten, places):
            crop[...] = image[top : top + crop_height, left : left + crop_width]
        ten[5:] = ten[:5, :, ::-1]
    return crops
