"""Write a page about training runs, from their metrics: curves, times, settings, the net.

The page is one file, which needs neither a server nor a network.  Two or more runs are compared.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pycaffe_dist.cli.flags import FlagParser, add_flag


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="[NAME=]FILE",
        help="the file of a run's metrics, which pcaffe train --metrics has written",
    )
    add_flag(
        parser,
        "output",
        metavar="FILE",
        help="the page; by default the first file's name with .html in place of its ending",
    )


def run(options: argparse.Namespace) -> int:
    """Write the page; raises PcaffeError."""
    from pycaffe_dist import atomic
    from pycaffe_dist.cli.plot_log import parse_run
    from pycaffe_dist.reports.page import RunMetrics, page

    runs = [parse_run(text) for text in options.runs]
    output = options.output or str(Path(runs[0][1][0]).with_suffix(".html"))
    text = page([RunMetrics.read(files, name) for name, files in runs])
    atomic.write(output, [text.encode()])
    print(f"Wrote {output}")
    return 0
