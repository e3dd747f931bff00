"""Databases from image files, the same as by Caffe's convert_imageset."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pycaffe_dist.data.decoders import Decoders
from pycaffe_dist.data.image import decode_image, encode, read_file, rescale, resize
from pycaffe_dist.data.sources import Writer
from pycaffe_dist.errors import DataError
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2


class AnnotationError(DataError):
    """What belongs to an image is missing or wrong; it is never skipped."""


# Other names of a kind of image file.
_SAME_KIND = {"jpeg": "jpg"}


@dataclass(frozen=True)
class Conversion:
    """Converts an image file to a Datum.

    ``size`` (height, width) resizes unless it is (0, 0).  If ``shorter`` or ``longer`` is given,
    images keep their aspect ratio instead: their shorter side gets at least ``shorter`` pixels, but
    the longer one at most ``longer``.  With ``encoded`` the Datum has an image file: the same file
    if nothing changes, else one of the kind ``encode_type`` or, if this is empty, of the kind of
    the name's ending.
    """

    color: bool = True
    size: tuple[int, int] = (0, 0)
    encoded: bool = False
    encode_type: str = ""
    shorter: int = 0
    longer: int = 0

    def datum(self, path: str, label: int) -> tuple[bytes, int]:
        """Return the serialized Datum and the number of values in the image; raises DataError."""
        datum, shape, _ = self.message(path, label)
        return datum.SerializeToString(), math.prod(shape)

    def message(
        self, path: str, label: int
    ) -> tuple[caffe_pb2.Datum, tuple[int, ...], tuple[int, int]]:
        """Return the Datum, its image's shape (C, H, W) and the file's size (height, width)."""
        data = read_file(path)
        image = decode_image(data, self.color, lambda: f"image '{path}'")
        size = image.shape[1:]
        if self.shorter or self.longer:
            factor = self._factor(min(size), max(size))
            image = image if factor == 1 else rescale(image, factor)
        elif all(self.size):
            image = resize(image, *self.size)
        datum = caffe_pb2.Datum(label=label)
        if self.encoded or self.encode_type:
            own_kind = _kind(path)
            kind = self.encode_type.lower() or own_kind
            if not kind:
                raise DataError(f"cannot tell from the name of image '{path}' how to encode it")
            resized = any((*self.size, self.shorter, self.longer))
            keeps_file = not resized and own_kind == _SAME_KIND.get(kind, kind)
            datum.data = data if keeps_file else encode(image, kind)
            datum.encoded = True
        else:
            datum.channels, datum.height, datum.width = image.shape
            datum.data = image.tobytes()
            datum.encoded = False
        return datum, image.shape, size

    def _factor(self, shorter: int, longer: int) -> float:
        """Return by how much to enlarge an image with such sides."""
        factor = np.float32(1)
        if shorter < self.shorter:
            factor = np.float32(self.shorter) / np.float32(shorter)
        if 0 < self.longer < int(factor * np.float32(longer)):
            factor = np.float32(self.longer) / np.float32(longer)
        return float(factor)


# Makes the record with this number: its value and the number of values in its image.
MakeRecord = Callable[[int], tuple[bytes, int]]


def convert(
    paths: Sequence[str],
    make: MakeRecord,
    writer: Writer,
    decoders: Decoders,
    *,
    skip: bool = True,
    check_size: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> tuple[int, int]:
    """Write the records that ``make`` makes of images, in order; return written and skipped ones.

    Keys are the line's number and the path in the list, as in Caffe.  With ``skip``, unreadable
    images are skipped with a warning; else their error is raised.  With ``check_size`` all must
    have as many values as the first.  ``progress`` is called for each.  Raises DataError.
    """

    def made_or_error(number: int) -> tuple[bytes, int] | DataError:
        try:
            return make(number)
        except DataError as error:
            return error

    written = skipped = 0
    first_size = 0
    for number, made in enumerate(decoders.stream(made_or_error, range(len(paths)))):
        if isinstance(made, DataError):
            if not skip or isinstance(made, AnnotationError):
                raise made
            logger.warning("Left out: %s", made)
            skipped += 1
            progress()
            continue
        value, size = made
        first_size = first_size or size
        if check_size and size != first_size:
            raise DataError(
                f"image '{paths[number]}' has {size} values, the first has "
                f"{first_size} (see --check_size)"
            )
        key = f"{number:08d}_{paths[number]}"
        writer.put(key.encode("utf-8", "surrogateescape"), value)
        written += 1
        progress()
        if written % 1000 == 0:
            logger.info("Processed %d files.", written)
    if not written:
        raise DataError(f"none of the {len(paths)} images can be read: there is nothing to write")
    return written, skipped


def _kind(path: str) -> str:
    """Return the kind of image file by a path's ending, empty without an ending."""
    _, dot, ending = path.rpartition(".")
    ending = ending.lower()
    return _SAME_KIND.get(ending, ending) if dot and "/" not in ending else ""
