"""Print a table of a net's layers: shapes, parameters, MACs, memory."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser, add_caffe_flags, add_flag, add_json_flag, split_list


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("model", help="the net's prototxt")
    add_caffe_flags(parser, ("phase", "level", "stage"), phase="the net's phase (default: TEST)")
    add_flag(
        parser,
        "shape",
        metavar="C,H,W",
        help="the shape of a sample, if the data layer does not contain it; or TOP=DIM,DIM,… for "
        "each top of a Python layer that brings data in, with blanks between",
    )
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Print the table; raises PcaffeError."""
    from pycaffe_dist.net import Net
    from pycaffe_dist.net.rules import with_state
    from pycaffe_dist.net.summary import summarize
    from pycaffe_dist.reports.sources import data_shape, without_sources
    from pycaffe_dist.results import show
    from pycaffe_dist.schema import caffe_pb2, text

    phase = caffe_pb2.Phase.Value(options.phase or "TEST")
    net, places = text.read_net_with_places(options.model)
    net = with_state(net, phase, options.level, split_list(options.stage))
    net = without_sources(net, data_shape(options.shape), places)
    show(summarize(Net(net, places=places)), options.json)
    return 0
