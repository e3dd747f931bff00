"""Show where an iteration's time goes, from the timeline of a run, and what would save most."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser, add_flag, add_json_flag
from pycaffe_dist.errors import UsageError


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("timeline", help="the file that pcaffe train --timeline has written")
    add_flag(parser, "skip", int, default=1, metavar="N", help="leave out the first N iterations")
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Print the table; raises PcaffeError."""
    from pycaffe_dist.reports.iteration_times import read_times
    from pycaffe_dist.results import show

    if options.skip < 0:
        raise UsageError(f"flag --skip needs 0 or more, not {options.skip}")
    show(read_times(options.timeline, options.skip), options.json)
    return 0
