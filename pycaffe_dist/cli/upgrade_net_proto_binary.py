"""Upgrade a binary net (.caffemodel) to today's format."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser
from pycaffe_dist.log import logger


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's arguments."""
    parser.add_argument("old", help="the binary net to read")
    parser.add_argument("new", help="the binary net to write")


def run(options: argparse.Namespace) -> int:
    """Upgrade the net with its weights; raises PcaffeError."""
    from pycaffe_dist import atomic
    from pycaffe_dist.schema.binary import read_net

    net = read_net(options.old)
    atomic.write(options.new, [net.SerializeToString()])
    logger.info("Wrote upgraded NetParameter binary proto to %s", options.new)
    return 0
