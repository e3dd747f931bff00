"""Compile the kernels that a net needs, and keep them for later runs.

Runs one iteration of the net in the TRAIN phase, with an update of every solver method, and one
forward pass in the TEST phase.  The net's data must be there.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import TYPE_CHECKING

from pycaffe_dist.cli.flags import FlagParser, add_caffe_flags, add_flag
from pycaffe_dist.errors import UsageError
from pycaffe_dist.log import fmt, logger

if TYPE_CHECKING:
    from pycaffe_dist.net import Parameter


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags."""
    add_caffe_flags(parser, ("model", "gpu", "level", "stage"))
    add_flag(
        parser, "threads", int, default=0, metavar="N", help="threads; 0 is one for every core"
    )


def run(options: argparse.Namespace) -> int:
    """Compile what the flags ask for; raises PcaffeError."""
    if not options.model:
        raise UsageError("need a model definition to warm up for: --model=FILE")
    from pycaffe_dist import device
    from pycaffe_dist.kernels import caching
    from pycaffe_dist.runtime.devices import choose_device
    from pycaffe_dist.schema import caffe_pb2

    if options.threads:
        device.set_threads(options.threads)
    with device.use(choose_device(options.gpu)):
        start = perf_counter()
        _run_phase(options, caffe_pb2.TRAIN)
        _run_phase(options, caffe_pb2.TEST)
    seconds = fmt(round(perf_counter() - start, 2))
    logger.info("Ready after %s s: kernels are kept in %s", seconds, caching.cache_directory())
    return 0


def _run_phase(options: argparse.Namespace, phase: int) -> None:
    from pycaffe_dist.cli.nets import open_net
    from pycaffe_dist.schema import caffe_pb2

    net = open_net(options, phase)
    try:
        net.forward()
        if phase == caffe_pb2.TRAIN:
            net.backward()
            for parameter in net.parameters[:1]:
                _update(parameter)
    finally:
        net.close()


def _update(parameter: Parameter) -> None:
    """Run every solver method on a parameter whose values matter to nobody."""
    from pycaffe_dist import device
    from pycaffe_dist.schema import caffe_pb2
    from pycaffe_dist.solvers.method import Regularization, method_class, method_types

    for name in method_types():
        param = caffe_pb2.SolverParameter(type=name)
        method = method_class(name)(param, [parameter], device.current())
        method.update(0, 0.0, Regularization(1.0, 0.0, 0.0), 0)
