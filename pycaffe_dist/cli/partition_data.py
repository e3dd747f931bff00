"""Split a database into parts, one for each rank with its own disk."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser
from pycaffe_dist.cli.reading import add_backend_flag
from pycaffe_dist.log import logger


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("database", help="the database to split")
    parser.add_argument("ranks", type=int, help="the number of parts: TARGET_0, TARGET_1, …")
    parser.add_argument(
        "target", nargs="?", default="", help="the parts' names without _r; by default DATABASE"
    )
    add_backend_flag(parser, "the kind of database")


def run(options: argparse.Namespace) -> int:
    """Write the parts; after a DataError none remains."""
    from pycaffe_dist.cli.progress import Counter
    from pycaffe_dist.data.parts import write_parts
    from pycaffe_dist.data.sources import open_source
    from pycaffe_dist.errors import UsageError

    if options.ranks < 1:
        raise UsageError(f"a database is cut into 1 part or more, not {options.ranks}")
    source = open_source(options.database, options.backend)
    target = options.target or options.database
    with Counter(source.count, "records") as bar:
        counts = write_parts(source, target, options.backend, options.ranks, bar.update)
    for rank, count in enumerate(counts):
        logger.info("%s_%d: %d records", target.rstrip("/"), rank, count)
    return 0
