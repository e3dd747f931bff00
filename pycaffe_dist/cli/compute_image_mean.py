"""Compute the mean image of a database, for transform_param's mean_file."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser
from pycaffe_dist.cli.reading import add_backend_flag
from pycaffe_dist.log import fmt, logger


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("database", help="the images' database")
    parser.add_argument("mean_file", nargs="?", default="", help="the .binaryproto file to write")
    add_backend_flag(parser, "the kind of database")


def run(options: argparse.Namespace) -> int:
    """Compute the mean, write it if a file is named and log each channel's; raises DataError."""
    from pycaffe_dist.data.mean import channel_means, mean_image, write_mean
    from pycaffe_dist.data.sources import open_source
    from pycaffe_dist.data.writers import check_new_file

    if options.mean_file:
        check_new_file(options.mean_file)
    source = open_source(options.database, options.backend)
    logger.info("Starting iteration")
    mean = mean_image(source, lambda count: logger.info("Processed %d files.", count))
    if options.mean_file:
        logger.info("Write to %s", options.mean_file)
        write_mean(options.mean_file, mean)
    logger.info("Number of channels: %d", len(mean))
    for channel, value in enumerate(channel_means(mean)):
        logger.info("mean_value channel [%d]: %s", channel, fmt(value))
    return 0
