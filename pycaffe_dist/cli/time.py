"""Measure a net's forward and backward time, layer by layer.

Kernels are compiled first, and the first pass is not counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING

from pycaffe_dist.cli.flags import FlagParser, add_caffe_flags, add_flag, add_json_flag
from pycaffe_dist.errors import UsageError
from pycaffe_dist.log import fmt, logger

if TYPE_CHECKING:
    from pycaffe_dist.net import Net
    from pycaffe_dist.reports.layer_times import NetTimes


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags."""
    add_caffe_flags(
        parser,
        ("model", "iterations", "phase", "gpu", "level", "stage"),
        phase="the net's phase; TRAIN when it is not given",
    )
    add_flag(
        parser, "threads", int, default=0, metavar="N", help="threads; 0 is one for every core"
    )
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Measure as the flags say; raises PcaffeError."""
    if not options.model:
        raise UsageError("need a model definition to time: --model=FILE")
    if options.iterations < 1:
        raise UsageError(f"flag --iterations needs 1 or more, not {options.iterations}")
    from pycaffe_dist.cli.nets import open_net
    from pycaffe_dist.gpu.choice import choose_device
    from pycaffe_dist.net.precompile import compile_kernels
    from pycaffe_dist.results import show
    from pycaffe_dist.schema import caffe_pb2
    from pycaffe_dist.threads import set_threads

    if options.threads:
        set_threads(options.threads)
    chosen = choose_device(options.gpu)
    phase = caffe_pb2.TEST if options.phase == "TEST" else caffe_pb2.TRAIN
    net = open_net(options, phase, device=chosen)
    try:
        compile_kernels([net])
        result = measure(net, options.iterations)
    finally:
        net.close()
    _log(result)
    chosen.warn_of_fallbacks()
    show(result, options.json)
    return 0


def measure(net: Net, iterations: int) -> NetTimes:
    """Run forward and backward layer by layer; wait for the device after each layer."""
    from pycaffe_dist.reports.layer_times import LayerTime, NetTimes

    logger.info("Performing Forward")
    logger.info("Initial loss: %s", fmt(net.forward()))
    logger.info("Performing Backward")
    net.backward()
    logger.info("*** Benchmark begins ***")
    logger.info("Testing for %d iterations.", iterations)
    names = net.layer_names
    forward, backward = [0.0] * len(names), [0.0] * len(names)
    start = perf_counter()
    for iteration in range(1, iterations + 1):
        at = perf_counter()
        net.clear_parameter_diffs()
        _add_times(forward, net, net.forward_layer, range(len(names)))
        _add_times(backward, net, net.backward_layer, reversed(range(len(names))))
        passed = fmt(_milliseconds(perf_counter() - at))
        logger.info("Iteration: %d forward-backward time: %s ms.", iteration, passed)
    mean = _milliseconds((perf_counter() - start) / iterations)
    layers = tuple(
        LayerTime(
            node.name,
            node.layer.type,
            _milliseconds(forward[index] / iterations),
            _milliseconds(backward[index] / iterations),
        )
        for index, node in enumerate(net.nodes)
    )
    all_forward, all_backward = (
        _milliseconds(sum(seconds) / iterations) for seconds in (forward, backward)
    )
    return NetTimes(iterations, layers, all_forward, all_backward, mean)


def _log(times: NetTimes) -> None:
    """Log the times in Caffe's words."""
    logger.info("Average time per layer: ")
    for layer in times.layers:
        for direction, mean in (("forward", layer.forward), ("backward", layer.backward)):
            logger.info("%10s\t%s: %s ms.", layer.name, direction, fmt(mean))
    for words, mean in (
        ("Average Forward pass", times.forward),
        ("Average Backward pass", times.backward),
        ("Average Forward-Backward", times.both),
        ("Total Time", times.both * times.iterations),
    ):
        logger.info("%s: %s ms.", words, fmt(mean))
    logger.info("*** Benchmark ends ***")


def _add_times(
    times: list[float], net: Net, run: Callable[[int], object], layers: Iterable[int]
) -> None:
    """Run the layers one by one; add the seconds of each to ``times``."""
    for index in layers:
        at = perf_counter()
        run(index)
        net.device.synchronize()
        times[index] += perf_counter() - at


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 4)
