"""Draw a net's layers as a graph, or as a page with zoom, search and definitions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pycaffe_dist.cli.flags import FlagParser, add_flag
from pycaffe_dist.errors import NetError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycaffe_dist.net_graph import Row
    from pycaffe_dist.schema.caffe_pb2 import NetParameter
    from pycaffe_dist.schema.places import Places


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("input_net_proto_file", metavar="net", help="the net's prototxt")
    parser.add_argument(
        "output_image_file",
        metavar="image",
        help="the file to write: .svg, .png, .pdf, .raw, …, or .html for a page with zoom, search "
        "and the layers' definitions",
    )
    add_flag(
        parser,
        "rankdir",
        default="",
        choices=("LR", "RL", "TB", "BT", ""),
        help="the graph's direction: top to bottom (TB, the default), left to right (LR, the "
        "default with --blobs), …",
    )
    add_flag(
        parser,
        "phase",
        default="",
        choices=("TRAIN", "TEST", "ALL", ""),
        help="the layers to draw (default: TRAIN, or ALL with --blobs)",
    )
    add_flag(parser, "unfold", bool, help="draw repeated blocks as often as they are there")
    add_flag(
        parser,
        "shape",
        metavar="C,H,W",
        help="the shape of a sample, if the data layer does not contain it, for shapes on edges",
    )
    add_flag(
        parser, "blobs", bool, help="draw blobs and layers in place, too, as pycaffe's draw_net.py"
    )
    add_flag(parser, "display_lrm", bool, help="as --blobs, with learning-rate multipliers")


def run(options: argparse.Namespace) -> int:
    """Draw the net; raises PcaffeError."""
    from pycaffe_dist import draw
    from pycaffe_dist.schema import caffe_pb2, text

    path = options.output_image_file
    if "." not in path:
        raise UsageError(f"'{path}' has no ending for its format, as in .png")
    net, places = text.read_net_with_places(options.input_net_proto_file)
    if options.blobs or options.display_lrm:
        for name in ("unfold", "shape"):
            if getattr(options, name):
                raise UsageError(f"flag --{name} is not for drawings with --blobs")
        print(f"Drawing net to {path}")
        phase = None
        if options.phase not in ("", "ALL"):
            phase = caffe_pb2.Phase.Value(options.phase)
        rankdir = options.rankdir or "LR"
        draw.draw_net_to_file(net, path, rankdir, phase, options.display_lrm)
    elif options.phase == "ALL":
        raise UsageError("--phase=ALL needs --blobs: a net has the layers of one phase")
    else:
        print(f"Drawing net to {path}")
        _draw(options, net, places)
    return 0


def _draw(options: argparse.Namespace, net: NetParameter, places: Places) -> None:
    """Draw the layers of one phase."""
    from pycaffe_dist import atomic
    from pycaffe_dist.net.rules import kept_layers, with_state
    from pycaffe_dist.net_graph import nodes_of, to_graph
    from pycaffe_dist.reports.net_viewer import viewer
    from pycaffe_dist.schema import caffe_pb2

    net = with_state(net, caffe_pb2.Phase.Value(options.phase or "TRAIN"))
    nodes = nodes_of([net.layer[index] for index in kept_layers(net, log=False)])
    known = _known_layers(options, net, places)
    graph = to_graph(nodes, not options.unfold, known, options.rankdir or "TB")
    path = options.output_image_file
    kind = path.rpartition(".")[2]
    if kind == "html":
        atomic.write(path, [viewer(net.name or path, graph, nodes).encode()])
    else:
        graph.write(path, format=kind)


def _known_layers(options: argparse.Namespace, net: NetParameter, places: Places) -> Sequence[Row]:
    """Return shapes and parameters of layers, none for a net that cannot be built here."""
    from pycaffe_dist.net import Net
    from pycaffe_dist.net.summary import summarize
    from pycaffe_dist.reports.sources import data_shape, without_sources

    shape = data_shape(options.shape)
    try:
        return summarize(Net(without_sources(net, shape, places), places=places)).layers
    except NetError as error:
        if options.shape:
            raise
        print(f"Without shapes: {error}")
        return ()
