"""Upgrade a solver's prototxt to today's format."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser
from pycaffe_dist.log import logger


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's arguments."""
    parser.add_argument("old", help="the prototxt to read")
    parser.add_argument("new", help="the prototxt to write")


def run(options: argparse.Namespace) -> int:
    """Upgrade the solver; raises PcaffeError."""
    from pycaffe_dist import atomic
    from pycaffe_dist.schema import caffe_pb2, text
    from pycaffe_dist.schema.upgrade import upgrade_solver

    solver = text.parse(text.read_text(options.old), caffe_pb2.SolverParameter(), options.old)
    notes = upgrade_solver(solver, options.old)
    for note in notes:
        logger.info("%s: %s", options.old, note)
    if not notes:
        logger.error("File already in latest proto format: %s", options.old)
    atomic.write(options.new, [text.to_text(solver).encode()])
    logger.info("Wrote upgraded SolverParameter text proto to %s", options.new)
    return 0
