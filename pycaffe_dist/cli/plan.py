"""Predict how fast a net would train on a cluster that you do not have.

Shows the exchange of each parameter, and the speed-up on 1, 2, 4, … hosts with one rank each and
the prototxt's batch size on every rank.  Layers are timed here (or --times has their times),
messages are modelled, and their overlap with backward is simulated.
"""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import (
    FlagParser,
    add_caffe_flags,
    add_flag,
    add_json_flag,
    add_settings_flags,
)
from pycaffe_dist.config import ExchangeSettings, Overlap, TrainOptions, Wire
from pycaffe_dist.errors import UsageError

_BITS = 8


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags."""
    add_caffe_flags(
        parser, ("solver", "iterations"), iterations="the number of iterations to time here"
    )
    parser.set_defaults(iterations=5)
    add_flag(parser, "ranks", int, default=16, metavar="P", help="hosts, with one rank each")
    add_flag(
        parser,
        "bandwidth",
        float,
        default=10.0,
        metavar="GBITS",
        help="the rate at which a host sends and receives at the same time, in Gbit/s",
    )
    add_flag(
        parser,
        "latency",
        float,
        default=50.0,
        metavar="US",
        help="the latency of a short message, in us",
    )
    add_flag(
        parser,
        "gflops",
        float,
        default=0.0,
        metavar="N",
        help="a host's GFLOP/s in matrix products; 0 measures this machine's",
    )
    add_flag(
        parser,
        "times",
        metavar="FILE",
        help="lines 'LAYER FORWARD_MS BACKWARD_MS' and 'update MS', instead of timing here",
    )
    add_settings_flags(parser, TrainOptions, exchange="how gradients are combined over ranks")
    add_settings_flags(
        parser,
        ExchangeSettings,
        overlap="gradients overlap with backward, or also with the next forward: see pcaffe train",
        wire="the number format of gradients in messages",
    )
    add_flag(parser, "threads", int, default=0, metavar="N", help="threads; 0 is all cores")
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Predict as the flags say; raises PcaffeError."""
    if not options.solver:
        raise UsageError("need a solver definition to plan for: --solver=FILE")
    for name, least in (("ranks", 1), ("iterations", 1), ("latency", 0), ("gflops", 0)):
        if getattr(options, name) < least:
            raise UsageError(f"flag --{name} needs {least} or more, not {getattr(options, name)}")
    if options.bandwidth <= 0:
        raise UsageError(f"flag --bandwidth needs more than 0, not {options.bandwidth}")
    from pycaffe_dist.comm.measured import Link
    from pycaffe_dist.planning import prediction
    from pycaffe_dist.planning.search import Workload
    from pycaffe_dist.results import show
    from pycaffe_dist.threads import set_threads

    if options.threads:
        set_threads(options.threads)
    link = Link(options.latency / 1e6, options.bandwidth * 1e9 / _BITS)
    rate = options.gflops * 1e9 or None
    imagined = prediction.Imagined(options.ranks, link, rate, Wire(options.wire))
    net, param = prediction.open_net(options.solver)
    try:
        if options.times:
            times = prediction.read_times(options.times, net)
        else:
            times = prediction.measure_times(net, param, options.iterations)
        workload = Workload(times, param.iter_size, Overlap(options.overlap))
        show(prediction.forecast(net, workload, imagined, options.exchange), options.json)
    finally:
        net.close()
    return 0
