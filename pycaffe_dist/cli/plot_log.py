"""Draw losses and accuracies of training logs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pycaffe_dist.cli.flags import FlagParser, add_flag


def main(argv: Sequence[str]) -> int:
    """Run ``plot_log`` with ``argv``; return the exit status."""
    from pycaffe_dist.cli.main import main as pcaffe

    return pcaffe(["plot_log", *argv])


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("image", help="the picture to write: .png, .svg or .pdf")
    parser.add_argument("logs", nargs="+", help="the logs; several runs share the charts")
    add_flag(
        parser,
        "against",
        default="both",
        choices=("iterations", "seconds", "both"),
        help="the horizontal axis",
    )


def run(options: argparse.Namespace) -> int:
    """Draw the picture; raises PcaffeError."""
    from pycaffe_dist.reports.plot import AXES, plot_logs
    from pycaffe_dist.reports.training_log import read_log

    against = list(AXES) if options.against == "both" else [options.against]
    plot_logs([read_log(path) for path in options.logs], options.image, against)
    print(f"Drew {options.image}")
    return 0
