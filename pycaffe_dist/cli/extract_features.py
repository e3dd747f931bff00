"""Write a trained net's blobs for every sample to databases or HDF5 files."""

from __future__ import annotations

import argparse
import os

from pycaffe_dist.cli.flags import FlagParser, split_list
from pycaffe_dist.errors import UsageError, did_you_mean
from pycaffe_dist.log import logger


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's arguments."""
    parser.add_argument("weights", help="the trained net (.caffemodel)")
    parser.add_argument("model", help="the net's prototxt; its TEST phase has a data layer")
    parser.add_argument("blobs", help="the blobs' names, separated by commas")
    parser.add_argument("targets", help="the databases or files to create, one for each blob")
    parser.add_argument("batches", type=int, help="the number of batches to run")
    parser.add_argument("kind", help="lmdb, leveldb or hdf5")
    parser.add_argument("device", nargs="?", default="CPU", help="CPU (default) or GPU")
    parser.add_argument("device_id", nargs="?", default="0", help="the GPU's number")


def run(options: argparse.Namespace) -> int:
    """Extract the features; raises PcaffeError and then leaves no file behind."""
    import contextlib

    from pycaffe_dist.data.features import create_features
    from pycaffe_dist.gpu.choice import choose_device
    from pycaffe_dist.net import Net
    from pycaffe_dist.net.rules import with_state
    from pycaffe_dist.schema import caffe_pb2, text

    names, targets = split_list(options.blobs), split_list(options.targets)
    _check(options, names, targets)
    chosen = choose_device(options.device_id if options.device == "GPU" else "")
    param, places = text.read_net_with_places(options.model)
    net = Net(with_state(param, caffe_pb2.TEST, 0, ()), places=places, device=chosen)
    try:
        net.load_weights(options.weights)
        for name in names:
            if name not in net.blobs:
                raise UsageError(
                    f"net '{options.model}' has no blob '{name}'{did_you_mean(name, net.blobs)}"
                )
        with contextlib.ExitStack() as stack:
            sinks = [
                stack.enter_context(create_features(target, options.kind, name))
                for target, name in zip(targets, names)
            ]
            logger.info("Extracting Features")
            for _ in range(options.batches):
                net.forward()
                for sink, name in zip(sinks, names):
                    sink.add(net.blobs[name])
        for sink, name in zip(sinks, names):
            logger.info(
                "Extracted features of %d query images for feature blob %s", sink.count, name
            )
    finally:
        net.close()
    logger.info("Successfully extracted the features!")
    return 0


def _check(options: argparse.Namespace, names: tuple[str, ...], targets: tuple[str, ...]) -> None:
    if len(names) != len(targets) or not names:
        raise UsageError(
            f"needs as many targets as blobs, found {len(targets)} for {len(names)} blob(s)"
        )
    if len({os.path.abspath(target) for target in targets}) < len(targets):
        raise UsageError(f"needs a target of its own for each blob, found '{options.targets}'")
    if options.batches < 1:
        raise UsageError(f"needs 1 batch or more, not {options.batches}")
    if options.device not in ("CPU", "GPU"):
        raise UsageError(f"the device is CPU or GPU, not '{options.device}'")
    if options.kind not in ("lmdb", "leveldb", "hdf5"):
        raise UsageError(f"features are written as lmdb, leveldb or hdf5, not '{options.kind}'")
