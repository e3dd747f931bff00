"""Draw a net's layers and blobs as a graph."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pycaffe_dist.cli.flags import FlagParser, add_flag
from pycaffe_dist.errors import UsageError


def main(argv: Sequence[str]) -> int:
    """Run ``draw_net`` with ``argv``; return the exit status."""
    from pycaffe_dist.cli.main import main as pcaffe

    return pcaffe(["draw_net", *argv])


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("input_net_proto_file", metavar="net", help="the net's prototxt")
    parser.add_argument(
        "output_image_file", metavar="image", help="the file to write: .png, .svg, .pdf, .raw, …"
    )
    add_flag(
        parser,
        "rankdir",
        default="LR",
        choices=("LR", "RL", "TB", "BT"),
        help="the graph's direction: from left to right, from top to bottom, …",
    )
    add_flag(
        parser, "phase", default="ALL", choices=("TRAIN", "TEST", "ALL"), help="the layers to draw"
    )
    add_flag(parser, "display_lrm", bool, help="show learning-rate multipliers")


def run(options: argparse.Namespace) -> int:
    """Draw the net; raises PcaffeError."""
    from pycaffe_dist import draw
    from pycaffe_dist.schema import caffe_pb2, text

    if "." not in options.output_image_file:
        raise UsageError(f"'{options.output_image_file}' has no ending for its format, as in .png")
    net = text.read_net(options.input_net_proto_file)
    print(f"Drawing net to {options.output_image_file}")
    phase = None if options.phase == "ALL" else caffe_pb2.Phase.Value(options.phase)
    draw.draw_net_to_file(
        net, options.output_image_file, options.rankdir, phase, options.display_lrm
    )
    return 0
