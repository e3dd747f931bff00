"""Turn a training log into tables of its train and test outputs."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser, add_flag


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("logfile_path", help="the log, Caffe's or pcaffe's")
    parser.add_argument("output_dir", help="the folder for LOG.train and LOG.test")
    add_flag(parser, "verbose", bool, help="print the files' names")
    add_flag(parser, "delimiter", default=",", metavar="C", help="what separates columns")


def run(options: argparse.Namespace) -> int:
    """Write the tables; raises DataError."""
    from pycaffe_dist.errors import UsageError
    from pycaffe_dist.reports.training_log import read_log, write_tables

    delimiter = options.delimiter.replace("\\t", "\t")
    if len(delimiter) != 1:
        raise UsageError(f"flag --delimiter needs one character, not '{options.delimiter}'")
    for path in write_tables(read_log(options.logfile_path), options.output_dir, delimiter):
        if options.verbose:
            print(f"Wrote {path}")
    return 0
