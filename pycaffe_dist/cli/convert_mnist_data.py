"""Convert MNIST's idx files to a database."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser
from pycaffe_dist.cli.reading import add_backend_flag
from pycaffe_dist.log import logger


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("images", help="the idx3 file of images; may be gzipped")
    parser.add_argument("labels", help="the idx1 file of labels; may be gzipped")
    parser.add_argument("database", help="the folder to create")
    add_backend_flag(parser, "the kind of database to create")


def run(options: argparse.Namespace) -> int:
    """Convert the files; raises DataError and then leaves no database behind."""
    from pycaffe_dist.data.convert import write_datums
    from pycaffe_dist.data.idx import read_pair
    from pycaffe_dist.data.writers import check_new, create_database

    check_new(options.database, options.backend)
    images, labels = read_pair(options.images, options.labels)
    logger.info("A total of %d items.", len(images))
    logger.info("Rows: %d Cols: %d", *images.shape[1:])
    with create_database(options.database, options.backend) as writer:
        write_datums(writer, images[:, None], labels, key_digits=8)
    logger.info("Processed %d files.", len(images))
    return 0
