"""Convert a list of image files to a database."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pycaffe_dist.cli.flags import FlagParser, add_flag, require_not_negative
from pycaffe_dist.cli.reading import add_backend_flag
from pycaffe_dist.errors import UsageError
from pycaffe_dist.log import logger


def main(argv: Sequence[str]) -> int:
    """Run ``convert_imageset`` with ``argv``; return the exit status."""
    from pycaffe_dist.cli.main import main as pcaffe

    return pcaffe(["convert_imageset", *argv])


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument(
        "root_folder", help="the prefix of every path in the list; usually ends in /"
    )
    parser.add_argument("list_file", help="the list: a path, a space and a label per line")
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


def run(options: argparse.Namespace) -> int:
    """Convert the images; raises DataError and then leaves no database behind."""
    import os

    import numpy as np
    from tqdm import tqdm

    from pycaffe_dist.data.decoders import Decoders
    from pycaffe_dist.data.image import check_kind
    from pycaffe_dist.data.image_list import ImageList, read_list
    from pycaffe_dist.data.imageset import Conversion, convert
    from pycaffe_dist.data.writers import check_new, create_database

    require_not_negative(options, ("seed", "decoders"))
    size = max(0, options.resize_height), max(0, options.resize_width)
    if bool(size[0]) != bool(size[1]):
        raise UsageError("give both --resize_height and --resize_width, or neither")
    check_new(options.database, options.backend)
    if options.encode_type:
        check_kind(options.encode_type.lower())
    images = read_list(options.list_file)
    if options.shuffle:
        logger.info("Shuffling data")
        order = np.random.default_rng(options.seed).permutation(len(images))
        images = ImageList([images.paths[i] for i in order], [images.labels[i] for i in order])
    logger.info("A total of %d images.", len(images))
    if options.encode_type and not options.encoded:
        logger.info("encode_type specified, assuming encoded=true.")
    conversion = Conversion(not options.gray, size, options.encoded, options.encode_type)
    decoders = Decoders(options.decoders or os.cpu_count() or 1)
    with (
        create_database(options.database, options.backend) as writer,
        tqdm(total=len(images), unit=" images", disable=None, leave=False) as bar,
    ):
        written, skipped = convert(
            images,
            options.root_folder,
            conversion,
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
    return 0
