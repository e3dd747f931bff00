"""Makes sure, now and then, that all ranks have the same weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.errors import ClusterError
from pycaffe_dist.kernels.checksum import checksum
from pycaffe_dist.runtime.plan import is_statistics

if TYPE_CHECKING:
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.runtime.cluster import Cluster
    from pycaffe_dist.solvers import Solver


class WeightCheck:
    """Compares the ranks' weights every ``interval`` iterations, for a solver to call after each.

    Raises ClusterError on all ranks, with the ranks that differ and the first parameter that does.
    """

    def __init__(self, interval: int):
        self._interval = interval

    def __call__(self, solver: Solver) -> None:
        if solver.iteration % self._interval == 0:
            solver.finish_updates()
            after = f"after iteration {solver.iteration}"
            check_equal(solver.cluster, solver.net.parameters, after)


def check_equal(cluster: Cluster, parameters: Sequence[Parameter], when: str) -> None:
    """Raise ClusterError, with the words ``when`` in it, unless all ranks have equal weights.

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
        f"{when} the weights of {ranks} of {cluster.size} differ from those of the other ranks, "
        f"first in {compared[first].key}"
    )
