"""Upgrade a net's prototxt to today's format."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser
from pycaffe_dist.log import logger


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's arguments."""
    parser.add_argument("old", help="the prototxt to read")
    parser.add_argument("new", help="the prototxt to write")


def run(options: argparse.Namespace) -> int:
    """Upgrade the net; raises PcaffeError."""
    from pycaffe_dist import atomic
    from pycaffe_dist.schema import caffe_pb2, text
    from pycaffe_dist.schema.upgrade import upgrade_net

    net = text.parse(text.read_text(options.old), caffe_pb2.NetParameter(), options.old)
    notes = upgrade_net(net, options.old).notes
    for note in notes:
        logger.info("%s: %s", options.old, note)
    if not notes:
        logger.error("File already in latest proto format: %s", options.old)
    atomic.write(options.new, [text.to_text(net).encode()])
    logger.info("Wrote upgraded NetParameter text proto to %s", options.new)
    return 0
