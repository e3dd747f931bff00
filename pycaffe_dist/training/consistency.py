"""Checks that all ranks train the same net: their solvers at the start, then their weights."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.errors import ClusterError
from pycaffe_dist.kernels.checksum import checksum
from pycaffe_dist.planning.plan import is_statistics
from pycaffe_dist.schema import text

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.config import TrainOptions
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter
    from pycaffe_dist.solvers import Solver

# Paths of files and GPUs may differ between ranks; nets are compared after they are built.
_OWN_FIELDS = ("net", "train_net", "test_net", "weights", "snapshot_prefix", "device_id")
_NETS = ("net_param", "train_net_param", "test_net_param")
_OWN_OPTIONS = ("solver", "snapshot", "weights", "gpu", "threads", "flags")


def check_options(cluster: Cluster, options: TrainOptions) -> None:
    """Raise ClusterError unless all ranks were given the same flags; all ranks call it."""
    # All ranks must know whether there is a timeline, but only rank 0 its file.
    compared = asdict(replace(options, timeline="a file" if options.timeline else "none"))
    compared |= compared.pop("cluster") | compared.pop("gradients")
    mine = [
        f"{name}: {getattr(value, 'value', value)}"
        for name, value in compared.items()
        if name not in _OWN_OPTIONS
    ]
    _check_alike(cluster, "command line", mine)


def check_solvers(cluster: Cluster, param: SolverParameter) -> None:
    """Raise ClusterError unless all ranks have the same SolverParameter; all ranks call it."""
    compared = type(param)()
    compared.CopyFrom(param)
    for name in _OWN_FIELDS + _NETS:
        compared.ClearField(name)
    _check_alike(cluster, "solver", text.to_text(compared).splitlines())


def check_nets(cluster: Cluster, solver: Solver) -> None:
    """Raise ClusterError unless the ranks' nets have the same parameters and outputs.

    The sizes of batches, and layers without parameters, may differ.  All ranks call it.
    """
    mine = [
        f"{parameter.key} of shape {parameter.shape}, lr_mult {parameter.lr_mult}, "
        f"decay_mult {parameter.decay_mult} {parameter.regularization}"
        for parameter in solver.net.parameters
    ]
    for net in (solver.net, *solver.test_nets):
        mine += [f"output {name} of shape {net.blobs[name].shape}" for name in net.outputs]
    _check_alike(cluster, "net", mine)


def _check_alike(cluster: Cluster, what: str, mine: Sequence[str]) -> None:
    """Raise ClusterError, with the first different line, unless all ranks have rank 0's lines."""
    digest = hashlib.sha256("\n".join(mine).encode()).digest()
    of_all = cluster.gather_bytes(digest)
    others = [rank for rank, theirs in enumerate(of_all) if theirs != of_all[0]]
    if not others:
        return
    other = others[0]
    texts = [cluster.broadcast_bytes("\n".join(mine).encode(), root) for root in (0, other)]
    pairs = zip_longest(*(data.decode().split("\n") for data in texts), fillvalue="nothing")
    expected, found = next(pair for pair in pairs if pair[0] != pair[1])
    raise ClusterError(
        f"the {what} of rank {other} of {cluster.size} differs from rank 0's: it has {found} "
        f"instead of {expected}"
    )


class WeightCheck:
    """Compares the ranks' weights every ``interval`` iterations; a solver calls it after each.

    Raises ClusterError on all ranks, with the ranks and the first parameter that differ.
    """

    def __init__(self, interval: int):
        self._interval = interval

    def __call__(self, solver: Solver) -> None:
        if solver.iteration % self._interval == 0:
            solver.finish_updates()
            after = f"after iteration {solver.iteration}"
            check_equal(solver.cluster, solver.net.parameters, after)


def check_equal(cluster: Cluster, parameters: Sequence[Parameter], when: str) -> None:
    """Raise ClusterError, which says ``when``, unless all ranks have equal weights.

    Running statistics are each rank's own.  All ranks call it.
    """
    compared = [parameter for parameter in parameters if not is_statistics(parameter)]
    mine = np.array([checksum(parameter.blob.read_data()) for parameter in compared], np.uint64)
    of_all = [np.frombuffer(data, np.uint64) for data in cluster.gather_bytes(mine.tobytes())]
    usual = Counter(theirs.tobytes() for theirs in of_all).most_common(1)[0][0]
    others = [rank for rank, theirs in enumerate(of_all) if theirs.tobytes() != usual]
    if not others:
        return
    expected = np.frombuffer(usual, np.uint64)
    first = min(int(np.argmax(of_all[rank] != expected)) for rank in others)
    ranks = f"rank{'s' * (len(others) > 1)} {', '.join(map(str, others))}"
    raise ClusterError(
        f"{when} the weights of {ranks} of {cluster.size} differ from the other ranks', "
        f"first in {compared[first].key}"
    )
