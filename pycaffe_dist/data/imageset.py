"""Databases from image files, the same as by Caffe's convert_imageset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pycaffe_dist.data.decoders import Decoders
from pycaffe_dist.data.image import decode_image, encode, read_file, resize
from pycaffe_dist.data.image_list import ImageList
from pycaffe_dist.data.sources import Writer
from pycaffe_dist.errors import DataError
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2

# Other names of a kind of image file.
_SAME_KIND = {"jpeg": "jpg"}


@dataclass(frozen=True)
class Conversion:
    """Converts an image file to a Datum.

    ``size`` (height, width) resizes unless it is (0, 0).  With ``encoded`` the Datum has an image
    file: the same file if nothing changes, else one of the kind ``encode_type`` or, if this is
    empty, of the kind of the name's ending.
    """

    color: bool = True
    size: tuple[int, int] = (0, 0)
    encoded: bool = False
    encode_type: str = ""

    def datum(self, path: str, label: int) -> tuple[bytes, int]:
        """Return the serialized Datum and the number of values in the image; raises DataError."""
        data = read_file(path)
        image = decode_image(data, self.color, lambda: f"image '{path}'")
        if all(self.size):
            image = resize(image, *self.size)
        datum = caffe_pb2.Datum(label=label)
        if self.encoded or self.encode_type:
            own_kind = _kind(path)
            kind = self.encode_type.lower() or own_kind
            if not kind:
                raise DataError(f"cannot tell from the name of image '{path}' how to encode it")
            keeps_file = not all(self.size) and own_kind == _SAME_KIND.get(kind, kind)
            datum.data = data if keeps_file else encode(image, kind)
            datum.encoded = True
        else:
            datum.channels, datum.height, datum.width = image.shape
            datum.data = image.tobytes()
            datum.encoded = False
        return datum.SerializeToString(), image.size


def convert(
    images: ImageList,
    root: str,
    conversion: Conversion,
    writer: Writer,
    decoders: Decoders,
    *,
    skip: bool = True,
    check_size: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> tuple[int, int]:
    """Write the Datums of ``images`` in order; return the numbers of written and skipped images.

    Keys are the line's number and the path in the list, as in Caffe.  With ``skip``, unreadable
    images are skipped with a warning; else their error is raised.  With ``check_size`` all must
    have as many values as the first.  ``progress`` is called for each.  Raises DataError.
    """

    def make(number: int) -> tuple[bytes, int] | DataError:
        try:
            return conversion.datum(root + images.paths[number], images.labels[number])
        except DataError as error:
            return error

    written = skipped = 0
    first_size = 0
    for number, made in enumerate(decoders.stream(make, range(len(images)))):
        if isinstance(made, DataError):
            if not skip:
                raise made
            logger.warning("Left out: %s", made)
            skipped += 1
            progress()
            continue
        value, size = made
        first_size = first_size or size
        if check_size and size != first_size:
            raise DataError(
                f"image '{root}{images.paths[number]}' has {size} values, the first has "
                f"{first_size} (see --check_size)"
            )
        key = f"{number:08d}_{images.paths[number]}"
        writer.put(key.encode("utf-8", "surrogateescape"), value)
        written += 1
        progress()
        if written % 1000 == 0:
            logger.info("Processed %d files.", written)
    if not written:
        raise DataError(f"none of the {len(images)} images can be read: there is nothing to write")
    return written, skipped


def _kind(path: str) -> str:
    """Return the kind of image file by a path's ending, empty without an ending."""
    _, dot, ending = path.rpartition(".")
    ending = ending.lower()
    return _SAME_KIND.get(ending, ending) if dot and "/" not in ending else ""
