"""Convert CIFAR-10's binary files to a training and a test database."""

from __future__ import annotations

import argparse
import os

from pycaffe_dist.cli.flags import FlagParser
from pycaffe_dist.log import logger


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's arguments."""
    parser.add_argument("input_folder", help="with data_batch_1.bin to 5 and test_batch.bin")
    parser.add_argument(
        "output_folder", help="the folder for cifar10_train_BACKEND and cifar10_test_BACKEND"
    )
    parser.add_argument(
        "backend", nargs="?", default="lmdb", help="lmdb or leveldb (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Convert the files; raises DataError and then leaves no database behind."""
    from pycaffe_dist.data.convert import (
        CIFAR_TEST_FILES,
        CIFAR_TRAIN_FILES,
        read_cifar,
        write_datums,
    )
    from pycaffe_dist.data.writers import check_new, create_database

    train, test = (
        os.path.join(options.output_folder, f"cifar10_{part}_{options.backend}")
        for part in ("train", "test")
    )
    for path in (train, test):
        check_new(path, options.backend)
    train_data = read_cifar(options.input_folder, CIFAR_TRAIN_FILES)
    test_data = read_cifar(options.input_folder, CIFAR_TEST_FILES)
    with (
        create_database(train, options.backend) as train_writer,
        create_database(test, options.backend) as test_writer,
    ):
        logger.info("Writing Training data")
        write_datums(train_writer, *train_data, key_digits=5)
        logger.info("Writing Testing data")
        write_datums(test_writer, *test_data, key_digits=5)
    logger.info("Processed %d and %d files.", len(train_data[1]), len(test_data[1]))
    return 0
