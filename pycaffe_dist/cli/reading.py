"""The flags of commands that read data: kinds of databases, threads, bad images, partitions."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser, add_flag, require_not_negative
from pycaffe_dist.data.options import CACHES, ON_ERROR, ReadingOptions, set_options


def add_backend_flag(parser: FlagParser, text: str, default: str = "lmdb") -> None:
    """Give ``parser`` the flag that says what kind a database is of, with this help."""
    from pycaffe_dist.data.sources import database_names

    add_flag(parser, "backend", default=default, choices=database_names(), help=text)


def add_reading_flags(parser: FlagParser) -> None:
    """Give ``parser`` the flags that say how data layers read."""
    add_flag(
        parser,
        "readers",
        int,
        default=0,
        metavar="N",
        help="threads of a data layer that make batches; 0 is 1, or 2 from 8 cores per rank on",
    )
    add_flag(
        parser,
        "decoders",
        int,
        default=0,
        metavar="N",
        help="threads of a data layer that decode images; 0 is one per core, at most 4",
    )
    add_flag(
        parser,
        "on_error",
        default=ReadingOptions.on_error,
        choices=ON_ERROR,
        help="what an image that cannot be read does: stop, or have the next one take its place",
    )
    add_flag(
        parser,
        "shared_file_system",
        bool,
        default=True,
        help="all ranks read one database, each its share; else rank r reads SOURCE_r "
        "(see partition_data)",
    )
    add_flag(
        parser,
        "cache",
        default=ReadingOptions.cache,
        choices=CACHES,
        help="keep databases in memory, once per node: their records as they are, or with images "
        "decoded",
    )
    add_flag(
        parser,
        "cache_limit",
        float,
        default=0.0,
        metavar="GIB",
        help="the most that the cache of one database may take; 0 is half of the memory",
    )


def use_reading_flags(options: argparse.Namespace) -> None:
    """Read data as the flags say from now on; raises UsageError."""
    require_not_negative(options, ("readers", "decoders", "cache_limit"))
    set_options(
        ReadingOptions(
            options.readers,
            options.decoders,
            options.on_error,
            options.shared_file_system,
            options.cache,
            options.cache_limit,
        )
    )
