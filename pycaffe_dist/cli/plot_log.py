"""Draw losses, accuracies and learning rates of training runs, from logs or metrics."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

from pycaffe_dist.cli.flags import FlagParser, add_flag
from pycaffe_dist.errors import UsageError


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("image", help="the picture to write: .png, .svg or .pdf")
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="[NAME=]FILE[,FILE…]",
        help="the log of a run or its file of metrics; several, in the order of time, if it was "
        "resumed; several runs share the charts",
    )
    add_flag(
        parser,
        "against",
        default="both",
        choices=("iterations", "seconds", "both"),
        help="the horizontal axis",
    )
    add_flag(parser, "log_scale", bool, help="losses on a logarithmic scale")
    add_flag(
        parser,
        "smooth",
        int,
        default=0,
        metavar="N",
        help="draw means over N displays, with the values pale behind them; 0 takes a fiftieth of "
        "all, 1 draws the values alone",
    )
    add_flag(
        parser,
        "follow",
        float,
        default=0.0,
        metavar="SECONDS",
        help="draw again after this time, whenever a file has grown, until Ctrl-C",
    )


def run(options: argparse.Namespace) -> int:
    """Draw the picture, once or again and again; raises PcaffeError."""
    for name in ("smooth", "follow"):
        if getattr(options, name) < 0:
            raise UsageError(f"flag --{name} needs 0 or more, not {getattr(options, name)}")
    runs = [parse_run(text) for text in options.runs]
    drawn = _sizes(runs)
    _draw(options, runs)
    print(f"Drew {options.image}", flush=True)
    while options.follow:
        time.sleep(options.follow)
        if (sizes := _sizes(runs)) != drawn:
            drawn = sizes
            _draw(options, runs)
    return 0


def parse_run(text: str) -> tuple[str, list[str]]:
    """Return the name and the files of ``[NAME=]FILE[,FILE…]``."""
    if os.path.exists(text):
        return "", [text]
    name, _, files = text.rpartition("=")
    return name, files.split(",")


def _sizes(runs: Sequence[tuple[str, list[str]]]) -> list[int]:
    """Return the sizes of all files, -1 for one that is not there at the moment."""
    paths = [path for _, files in runs for path in files]
    return [os.path.getsize(path) if os.path.exists(path) else -1 for path in paths]


def _draw(options: argparse.Namespace, runs: Sequence[tuple[str, list[str]]]) -> None:
    from pycaffe_dist.reports.plot import AXES, Style, plot_logs
    from pycaffe_dist.reports.training_log import read_run

    against = list(AXES) if options.against == "both" else [options.against]
    style = Style(against, options.log_scale, options.smooth)
    plot_logs([read_run(files, name) for name, files in runs], options.image, style)
