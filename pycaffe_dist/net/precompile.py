"""Compiles the kernels of nets before their first iteration, by a dry run of a copy of each."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist import device as devices
from pycaffe_dist.kernels import ahead, caching, dry_run
from pycaffe_dist.kernels.dry_run import Needs
from pycaffe_dist.kernels.jit.codegen.target import target
from pycaffe_dist.kernels.workers import Task
from pycaffe_dist.log import silent
from pycaffe_dist.schema import caffe_pb2

if TYPE_CHECKING:
    from pycaffe_dist.net.net import Net

# Layers that must not run twice: users' code, or layers that write files.
_NOT_RUN = ("Python", "HDF5Output")


def compile_kernels(
    nets: Sequence[Net],
    also: Callable[[Net], Any] | None = None,
    also_is: str = "",
    others: Sequence[Task] = (),
) -> None:
    """Compile the kernels of ``nets`` for forward and, in the TRAIN phase, for backward.

    Kernels of earlier runs are cached.  The dry run calls ``also`` with a copy of the first net, to
    find other kernels; ``also_is`` identifies this function.  ``others`` are tasks that compile by
    themselves.  Nets on a GPU are skipped.
    """
    nets = [net for net in nets if not net.device.is_gpu]
    marks = [caching.mark(_identity(net, also_is)) for net in nets]
    if all(mark.exists() for mark in marks):
        return
    needs = Needs()
    for net in nets:
        find_needs(net, needs, also)
        also = None
    # After a failure the next start tries again.
    for mark in marks if ahead.compile_needs(needs, others) else ():
        with contextlib.suppress(OSError):  # then the next start looks again
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def find_needs(net: Net, needs: Needs, also: Callable[[Net], Any] | None = None) -> None:
    """Add the kernels of the passes of ``net``, and of ``also``, to ``needs``."""
    from pycaffe_dist.net.net import Net

    # A layer may fail without values: its kernels are compiled at their first use.
    quiet = np.errstate(all="ignore")
    with silent(), quiet, dry_run.noting(needs), contextlib.suppress(Exception):
        copy = Net(
            _copy_without_data(net),
            dtype=net.dtype,
            device=devices.HOST,
            keep_blobs=net.keeps_blobs,
            precision=net.precision,
        )
        copy.record = lambda span: needs.name_layer(span[1])
        learns = net.phase == caffe_pb2.TRAIN
        try:
            copy.forward()
            if learns:
                copy.backward()
        except Exception:
            _run_layers(copy, learns)
        if also is not None:
            also(copy)


def _run_layers(net: Net, learns: bool) -> None:
    """Run each layer separately, so that one that fails without values does not stop the others."""
    indices = list(range(len(net.nodes)))
    for index in indices if net.keeps_blobs else ():
        with contextlib.suppress(Exception):
            net.forward_layer(index)
    for index in reversed(indices) if learns else ():
        with contextlib.suppress(Exception):
            net.backward_layer(index)


def _copy_without_data(net: Net) -> caffe_pb2.NetParameter:
    """Return the definition of ``net`` with inputs in place of layers that must not run."""
    nodes = {node.name: node for node in net.nodes}
    param = caffe_pb2.NetParameter()
    param.CopyFrom(net.definition)
    del param.layer[:]
    for layer in net.definition.layer:
        makes_data = not layer.bottom and layer.type != "Parameter"
        if not makes_data and layer.type not in _NOT_RUN:
            param.layer.append(layer)
        elif layer.top:
            source = param.layer.add(name=layer.name, type="Input", top=layer.top)
            for top in nodes[layer.name].top:
                source.input_param.shape.add(dim=top.shape)
    return param


def _identity(net: Net, also: str) -> str:
    """Return a key, equal for nets that need the same kernels as ``net`` and ``also``."""
    shapes = [blob.shape for node in net.nodes for blob in node.top]
    words = f"{target()} {net.dtype} {shapes} {net.keeps_blobs} {net.precision} {also}".encode()
    return hashlib.sha256(words + net.definition.SerializeToString()).hexdigest()[:32]
