"""Convert MNIST's idx files to a database of random pairs."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser, add_flag, require_not_negative
from pycaffe_dist.cli.reading import add_backend_flag
from pycaffe_dist.log import logger


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("images", help="the idx3 file of images; may be gzipped")
    parser.add_argument("labels", help="the idx1 file of labels; may be gzipped")
    parser.add_argument("database", help="the folder to create")
    add_backend_flag(parser, "the kind of database to create", "leveldb")
    add_flag(parser, "seed", int, default=0, metavar="N", help="the seed of the random pairs")


def run(options: argparse.Namespace) -> int:
    """Convert the files; raises DataError and then leaves no database behind."""
    import numpy as np

    from pycaffe_dist.data.convert import write_datums
    from pycaffe_dist.data.idx import read_pair
    from pycaffe_dist.data.writers import check_new, create_database

    require_not_negative(options, ("seed",))
    check_new(options.database, options.backend)
    images, labels = read_pair(options.images, options.labels)
    logger.info("A total of %d items.", len(images))
    logger.info("Rows: %d Cols: %d", *images.shape[1:])
    pairs = np.random.default_rng(options.seed).integers(len(images), size=(len(images), 2))
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    with create_database(options.database, options.backend) as writer:
        # A channel for each image of a pair; label 1 where both show the same digit.
        write_datums(writer, images[pairs], same, key_digits=8)
    logger.info("Processed %d files.", len(pairs))
    return 0
