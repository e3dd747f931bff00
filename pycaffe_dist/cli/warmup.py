"""Compile kernels for later runs, of one net or of common nets.

With --model, compiles all kernels for training and testing this net, whose data must be available.
Without, compiles the kernels that do not depend on the sizes of layers, which take longest.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from pycaffe_dist.cli.flags import FlagParser, add_caffe_flags, add_flag
from pycaffe_dist.log import fmt, logger, silent

if TYPE_CHECKING:
    from pycaffe_dist.kernels.workers import Worker
    from pycaffe_dist.net import Net


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags."""
    add_caffe_flags(parser, ("model", "gpu", "level", "stage"))
    add_flag(
        parser, "threads", int, default=0, metavar="N", help="threads; 0 is one for every core"
    )


def run(options: argparse.Namespace) -> int:
    """Compile the kernels that the flags select; raises PcaffeError."""
    from pycaffe_dist import device
    from pycaffe_dist.gpu.choice import choose_device
    from pycaffe_dist.kernels import caching
    from pycaffe_dist.net.precompile import compile_kernels
    from pycaffe_dist.schema import caffe_pb2
    from pycaffe_dist.threads import set_threads

    if options.threads:
        set_threads(options.threads)
    with device.use(choose_device(options.gpu)), contextlib.ExitStack() as stack:
        start = perf_counter()
        nets = [_open_net(options, phase) for phase in (caffe_pb2.TRAIN, caffe_pb2.TEST)]
        for net in nets:
            stack.callback(net.close)
        others = [] if options.model else [_compile_data_kernels]
        compile_kernels(nets, _update, "every method", others)
        if device.current().is_gpu:
            _run(nets)
    seconds = fmt(round(perf_counter() - start, 2))
    logger.info("Ready after %s s: kernels are kept in %s", seconds, caching.cache_directory())
    return 0


def _open_net(options: argparse.Namespace, phase: int) -> Net:
    from pycaffe_dist import net
    from pycaffe_dist.cli.nets import open_net
    from pycaffe_dist.net.rules import with_state
    from pycaffe_dist.schema import text

    if options.model:
        return open_net(options, phase)
    usual = text.read_net(str(Path(net.__file__).with_name("usual.prototxt")))
    with silent():
        return net.Net(with_state(usual, phase))


def _run(nets: list[Net]) -> None:
    """Run nets on a GPU, whose kernels are compiled at their first use."""
    train, test = nets
    train.forward()
    train.backward()
    _update(train)
    test.forward()


def _update(net: Net) -> None:
    """Update a dummy parameter by every solver method."""
    from pycaffe_dist import device
    from pycaffe_dist.schema import caffe_pb2
    from pycaffe_dist.solvers.method import Regularization, method_class, method_types

    for name in method_types() if net.parameters else ():
        param = caffe_pb2.SolverParameter(type=name)
        method = method_class(name)(param, net.parameters[:1], device.current())
        method.update(0, 0.0, Regularization(1.0, 0.0, 0.0), 0)


def _compile_data_kernels(worker: Worker) -> None:
    worker.run(_read_records)


def _read_records() -> None:
    """Read records of the usual kinds like data layers, which compiles their kernels."""
    import tempfile

    import numpy as np

    from pycaffe_dist.data.convert import write_datums
    from pycaffe_dist.data.writers import create_database
    from pycaffe_dist.net import Net
    from pycaffe_dist.schema import caffe_pb2

    with tempfile.TemporaryDirectory() as folder:
        for channels in (1, 3):
            source = f"{folder}/{channels}"
            with create_database(source, "lmdb") as writer:
                images = np.zeros((2, channels, 8, 8), np.uint8)
                write_datums(writer, images, np.zeros(2, np.int64), key_digits=8)
            param = caffe_pb2.NetParameter()
            data = param.layer.add(name="data", type="Data", top=["data", "label"])
            data.data_param.source, data.data_param.batch_size = source, 2
            data.data_param.backend = caffe_pb2.DataParameter.LMDB
            data.transform_param.crop_size = 6
            net = Net(param)
            net.forward()
            net.close()
