"""Resize images so that their shorter side fits, and crop their centre."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser, add_flag
from pycaffe_dist.errors import UsageError
from pycaffe_dist.log import logger


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("list_file", help="the images, a path below --input_folder per line")
    add_flag(parser, "input_folder", metavar="FOLDER", help="the folder with the images")
    add_flag(parser, "output_folder", metavar="FOLDER", help="the folder for the results")
    add_flag(
        parser,
        "output_side_length",
        int,
        default=256,
        metavar="N",
        help="width and height of the results",
    )
    add_flag(parser, "decoders", int, default=0, metavar="N", help="threads; 0 is one per core")


def run(options: argparse.Namespace) -> int:
    """Convert the images; raises DataError for the list; images that fail are named and counted."""
    import os

    from pycaffe_dist.cli.progress import Counter
    from pycaffe_dist.data.cropping import crop_file
    from pycaffe_dist.data.decoders import Decoders
    from pycaffe_dist.data.image_list import read_paths
    from pycaffe_dist.errors import DataError

    side = options.output_side_length
    if side < 1:
        raise UsageError(f"flag --output_side_length needs 1 or more, not {side}")
    if not options.output_folder:
        raise UsageError("need a folder to write to: --output_folder=FOLDER")

    def crop(path: str) -> DataError | None:
        try:
            crop_file(
                os.path.join(options.input_folder, path),
                os.path.join(options.output_folder, path),
                side,
            )
        except DataError as error:
            return error
        return None

    paths = read_paths(options.list_file)
    decoders = Decoders(options.decoders or os.cpu_count() or 1)
    failed = 0
    with Counter(len(paths), "images") as bar:
        for error in decoders.stream(crop, paths):
            bar.update()
            if error is not None:
                logger.error("%s", error)
                failed += 1
    decoders.close()
    logger.info("Converted %d images, %d failed.", len(paths) - failed, failed)
    return 1 if failed else 0
