"""Write the names and sizes of a list of images, as SSD's evaluation reads them."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser, add_flag
from pycaffe_dist.log import logger


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("root_folder", help="the folder of the images")
    parser.add_argument("list_file", help="the list: an image's path and more per line")
    parser.add_argument("output", help="the file to write: name, height and width per line")
    text = "a file with a name and a number per line; numbers are written in place of names"
    add_flag(parser, "name_id_file", metavar="FILE", help=text)
    add_flag(parser, "decoders", int, default=0, metavar="N", help="threads; 0 is one per core")


def run(options: argparse.Namespace) -> int:
    """Write the sizes; raises DataError."""
    import os

    from pycaffe_dist.data.decoders import Decoders
    from pycaffe_dist.data.image_list import read_words
    from pycaffe_dist.data.image_sizes import read_numbers, size_line
    from pycaffe_dist.data.writers import check_new_file, write_file

    check_new_file(options.output)
    lines = read_words(options.list_file, 1, "the path of an image")
    logger.info("A total of %d images.", len(lines))
    numbers = read_numbers(options.name_id_file) if options.name_id_file else None
    decoders = Decoders(options.decoders or os.cpu_count() or 1)
    rows = decoders.stream(lambda line: size_line(options.root_folder, line, numbers), lines)
    write_file(options.output, "".join(rows).encode("utf-8", "surrogateescape"), "list of sizes")
    decoders.close()
    logger.info("Processed %d files.", len(lines))
    return 0
