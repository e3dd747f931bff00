"""The flags of commands that convert lists of images to databases, and the conversion."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from pycaffe_dist.cli.flags import FlagParser, add_flag, require_not_negative
from pycaffe_dist.cli.reading import add_backend_flag
from pycaffe_dist.errors import DataError, UsageError
from pycaffe_dist.log import logger

if TYPE_CHECKING:
    from pycaffe_dist.data.imageset import Conversion, MakeRecord

T = TypeVar("T")


def add_image_flags(parser: FlagParser, list_help: str, needs_list: bool = True) -> None:
    """Give ``parser`` the arguments and flags of `conversion_of`, `ordered` and `write`."""
    text = "the folder of the list's paths, or the beginning of all of them"
    parser.add_argument("root_folder", help=text)
    parser.add_argument("list_file", help=list_help, nargs=None if needs_list else "?")
    parser.add_argument("database", help="the folder to create")
    add_flag(parser, "gray", bool, help="convert images to gray")
    add_flag(parser, "shuffle", bool, help="put images and their labels in a random order")
    add_backend_flag(parser, "the kind of database to create")
    add_flag(parser, "resize_width", int, default=0, metavar="N", help="width to resize images to")
    add_flag(
        parser, "resize_height", int, default=0, metavar="N", help="height to resize images to"
    )
    add_flag(parser, "check_size", bool, help="check that all images have the same size")
    add_flag(parser, "encoded", bool, help="store image files instead of pixels")
    add_flag(
        parser,
        "encode_type",
        metavar="TYPE",
        help="the kind of image file to store (png, jpg, …); by default each image's own",
    )
    add_flag(parser, "seed", int, metavar="N", help="make --shuffle repeatable")
    add_flag(
        parser,
        "decoders",
        int,
        default=0,
        metavar="N",
        help="threads that decode images; 0 is one per core",
    )
    add_flag(
        parser,
        "on_error",
        default="skip",
        choices=("skip", "stop"),
        help="for an image that cannot be read: skip it, as in Caffe, or stop",
    )


def conversion_of(
    options: argparse.Namespace,
    shorter: int = 0,
    longer: int = 0,
    replace: bool = False,
    database: str = "",
) -> Conversion:
    """Return the conversion that the flags ask for; raises UsageError and DataError.

    The database, or the one that is named, must be new, unless ``replace`` is set.
    """
    from pycaffe_dist.data.image import check_kind
    from pycaffe_dist.data.imageset import Conversion
    from pycaffe_dist.data.writers import check_new

    require_not_negative(options, ("seed", "decoders"))
    size = max(0, options.resize_height), max(0, options.resize_width)
    if bool(size[0]) != bool(size[1]):
        raise UsageError("give both --resize_height and --resize_width, or neither")
    check_new(database or options.database, options.backend, replace)
    if options.encode_type:
        check_kind(options.encode_type.lower())
    if options.encode_type and not options.encoded:
        logger.info("encode_type specified, assuming encoded=true.")
    color, encode_type = not options.gray, options.encode_type
    return Conversion(color, size, options.encoded, encode_type, shorter, longer)


def ordered(options: argparse.Namespace, items: Sequence[T]) -> list[T]:
    """Return the images in a random order, if the flags ask for it."""
    import numpy as np

    if options.shuffle:
        logger.info("Shuffling data")
        order = np.random.default_rng(options.seed).permutation(len(items))
        items = [items[i] for i in order]
    logger.info("A total of %d images.", len(items))
    return list(items)


def root_of(root: str, paths: Sequence[str]) -> str:
    """Return what goes before each path of a list: ``root``, with a / after a folder's name.

    Raises DataError when there is no file at any of the joined paths.
    """
    if os.path.isdir(root) and not root.endswith("/") and not os.path.exists(root + paths[0]):
        root += "/"
    if any(os.path.exists(root + path) for path in paths):
        return root
    raise DataError(
        f"none of the list's {len(paths)} image(s) is there: '{root}' and the first path, "
        f"'{paths[0]}', make '{root + paths[0]}'"
    )


def write(
    options: argparse.Namespace,
    paths: Sequence[str],
    make: MakeRecord,
    replace: bool = False,
    database: str = "",
) -> None:
    """Write the database, or the one that is named; raises DataError and then leaves none."""
    from pycaffe_dist.cli.progress import Counter
    from pycaffe_dist.data.decoders import Decoders
    from pycaffe_dist.data.imageset import convert
    from pycaffe_dist.data.writers import create_database

    decoders = Decoders(options.decoders or os.cpu_count() or 1)
    with (
        create_database(database or options.database, options.backend, replace) as writer,
        Counter(len(paths), "images") as bar,
    ):
        written, skipped = convert(
            paths,
            make,
            writer,
            decoders,
            skip=options.on_error == "skip",
            check_size=options.check_size,
            progress=bar.update,
        )
    decoders.close()
    logger.info("Processed %d files.", written)
    if skipped:
        logger.warning("Left out %d image(s) that cannot be read", skipped)
