"""Compare two files of weights, or two solver states, layer by layer."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pycaffe_dist.cli.flags import FlagParser, add_flag


def main(argv: Sequence[str]) -> int:
    """Run ``compare`` with ``argv``; return the exit status."""
    from pycaffe_dist.cli.main import main as pcaffe

    return pcaffe(["compare", *argv])


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("first", help="a .caffemodel or .solverstate, binary or HDF5")
    parser.add_argument("second", help="a second file of the same kind")
    add_flag(parser, "blobs", bool, help="show every blob instead of each layer's largest")
    add_flag(
        parser,
        "tolerance",
        float,
        default=0.0,
        metavar="X",
        help="exit with status 0 up to this relative difference, with 1 beyond it",
    )


def run(options: argparse.Namespace) -> int:
    """Print the differences; status 1 when there are any; raises PcaffeError."""
    from pycaffe_dist.reports.compare import compare, worst_per_layer

    blobs = compare(options.first, options.second)
    rows = blobs if options.blobs else worst_per_layer(blobs)
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        values = row.note or f"largest {row.largest:.3g}, relative {row.relative:.3g}"
        print(f"{row.name:<{width}}  {values}")
    different = [b for b in blobs if b.note or b.relative > options.tolerance]
    print(f"{len(blobs) - len(different)} of {len(blobs)} blobs are the same")
    return 1 if different else 0
