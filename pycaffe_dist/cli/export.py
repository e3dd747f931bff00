"""Export a net with its weights to ONNX, PyTorch or NumPy, and check it there."""

from __future__ import annotations

import argparse
from typing import Any

from pycaffe_dist.cli.flags import FlagParser, add_caffe_flags, add_flag, add_json_flag, split_list

SAME = "MODEL"


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("model", metavar="net", help="the net's prototxt")
    parser.add_argument(
        "trained", metavar="weights", help="its weights: a .caffemodel, binary or HDF5"
    )
    parser.add_argument("out", help="the file to write: .onnx, .py or .npz")
    add_flag(parser, "to", choices=("onnx", "torch", "numpy"), default="onnx", help="the format")
    add_flag(
        parser,
        "tolerance",
        float,
        default=0.0,
        metavar="X",
        help="write nothing beyond this relative difference (0: 1e-4, with --float16 2e-2)",
    )
    add_flag(
        parser,
        "preprocess",
        alone=SAME,
        metavar="FILE",
        help="onnx: let the model take plain pixels; apply mean and scale of the transform_param "
        "in this prototxt, by default the model's",
    )
    add_flag(
        parser, "fold", bool, help="fold BatchNorm and Scale into the products before or after them"
    )
    add_flag(parser, "float16", bool, help="onnx: compute in float16; in- and outputs stay float32")
    add_flag(
        parser,
        "shape",
        metavar="C,H,W",
        help="the shape of a sample, if the data layer does not contain it",
    )
    add_json_flag(parser)
    used = ("solver", "phase", "level", "stage")
    solver = "torch: write its method and learning rates, too; the phase is then TRAIN"
    add_caffe_flags(parser, used, phase="the net's phase (default: TEST)", solver=solver)


def run(options: argparse.Namespace) -> int:
    """Export the net; raises PcaffeError."""
    from pycaffe_dist.errors import UsageError
    from pycaffe_dist.exporting import export_net
    from pycaffe_dist.results import show

    for flag, formats in (
        ("preprocess", ("onnx",)),
        ("float16", ("onnx",)),
        ("solver", ("torch",)),
        ("fold", ("onnx", "torch")),
    ):
        if getattr(options, flag) and options.to not in formats:
            raise UsageError(f"flag --{flag} is for --to={' and --to='.join(formats)}")
    if options.fold and options.solver:
        raise UsageError("flag --fold is for inference; leave it out with --solver")
    param, net = _open(options)
    show(export_net(net, options.out, options.to, _options(options, param)), options.json)
    return 0


def _open(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the prototxt, and its net with the weights."""
    from pycaffe_dist.errors import WeightsError
    from pycaffe_dist.net import Net
    from pycaffe_dist.net.rules import with_state
    from pycaffe_dist.reports.sources import data_shape, without_sources
    from pycaffe_dist.schema import caffe_pb2, text

    default = "TRAIN" if options.solver else "TEST"
    phase = caffe_pb2.Phase.Value(options.phase or default)
    param, places = text.read_net_with_places(options.model)
    param = with_state(param, phase, options.level, split_list(options.stage))
    net = Net(without_sources(param, data_shape(options.shape), places), places=places)
    missing = net.load_weights(options.trained)
    if missing:
        raise WeightsError(
            f"{options.trained} has no weights for {', '.join(missing)} of {options.model}"
        )
    return param, net


def _options(options: argparse.Namespace, param: Any) -> Any:
    from pycaffe_dist.exporting.options import Options
    from pycaffe_dist.schema import text

    source = None
    if options.preprocess:
        source = param if options.preprocess == SAME else text.read_net(options.preprocess)
    solver = text.read_solver(options.solver) if options.solver else None
    return Options(
        tolerance=options.tolerance,
        preprocess=source,
        fold=options.fold,
        float16=options.float16,
        solver=solver,
    )
