"""Compare two files of weights, two solver states, or two nets, layer by layer."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser, add_flag, add_json_flag


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument(
        "first",
        help="a .caffemodel or .solverstate, binary or HDF5; or a net: "
        "PROTOTXT+CAFFEMODEL, an .onnx, or a .py that export wrote",
    )
    parser.add_argument("second", help="a second file of the same kind, or a second net")
    add_flag(
        parser,
        "blobs",
        bool,
        help="weights and states: show every blob instead of each layer's largest",
    )
    add_flag(
        parser,
        "tolerance",
        float,
        default=0.0,
        metavar="X",
        help="exit with status 0 up to this relative difference, with 1 beyond it (nets: 1e-4)",
    )
    add_flag(
        parser,
        "inputs",
        default="random",
        metavar="FILE",
        help="nets: an .npz with an array for each input, or 'random'",
    )
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Print the differences; status 1 when there are any; raises PcaffeError."""
    from pycaffe_dist.errors import UsageError
    from pycaffe_dist.exporting import comparing
    from pycaffe_dist.exporting.options import TOLERANCE
    from pycaffe_dist.reports.compare import compare
    from pycaffe_dist.results import show

    if comparing.is_model(options.first) or comparing.is_model(options.second):
        if options.blobs:
            raise UsageError("flag --blobs is for weights and states: of nets, all blobs are shown")
        tolerance = options.tolerance or TOLERANCE
        nets = comparing.compare(options.first, options.second, options.inputs, tolerance)
        show(nets, options.json)
        return 1 if nets.first else 0
    if options.inputs != comparing.RANDOM:
        raise UsageError("flag --inputs is for nets, not for weights and states")
    found = compare(options.first, options.second, options.tolerance, options.blobs)
    show(found, options.json)
    return 0 if found.same == found.compared else 1
