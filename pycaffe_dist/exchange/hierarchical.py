"""The mean gradient in two stages: within each host through shared memory, then between hosts.

The network carries each gradient once per host, however many ranks the host has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from pycaffe_dist.comm.tasks import Step, Task
from pycaffe_dist.config import ExchangeSettings
from pycaffe_dist.exchange.allreduce import DirectMean, Values
from pycaffe_dist.exchange.base import (
    Bucket,
    Cost,
    Slice,
    mean_in_rank_order,
    register,
    sum_in_rank_order,
)
from pycaffe_dist.exchange.buckets import FusingExchange

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.comm.mpi import MPICluster
    from pycaffe_dist.comm.rma import Window
    from pycaffe_dist.net.parameter import Parameter

# As many buckets may be in shared memory at a time; more only take room there.
AREAS = 4
_ALIGNMENT = 64
_FLAG_WORDS = _ALIGNMENT // 8  # a flag has a cache line to itself


class _Area:
    """A place in shared memory for one bucket at a time: every local rank's numbers, and the sum.

    ``arrived`` and ``finished`` have a flag for each local rank: which buckets it has got here,
    and of which its part of the mean is there; both count up.
    """

    def __init__(self, memory: np.ndarray, local_ranks: int):
        flags = 2 * local_ranks * _ALIGNMENT
        words = memory[:flags].view(np.int64).reshape(2, local_ranks, _FLAG_WORDS)
        self.arrived, self.finished = words[0, :, 0], words[1, :, 0]
        self._segments = memory[flags:].reshape(local_ranks + 1, -1)

    @staticmethod
    def nbytes(largest: int, local_ranks: int) -> int:
        """Return the size of an area for buckets of at most ``largest`` bytes."""
        segment = -(-max(1, largest) // _ALIGNMENT) * _ALIGNMENT
        return 2 * local_ranks * _ALIGNMENT + (local_ranks + 1) * segment

    def arrays(self, like: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the local ranks' numbers, and where the mean goes, as arrays like one's own."""
        *ours, result = (segment[: like.nbytes].view(like.dtype) for segment in self._segments)
        return ours, result


@register("hierarchical")
class Hierarchical(FusingExchange):
    """The ranks of a host add their gradients up in shared memory; between hosts go the sums.

    With at least M ranks on every host, a gradient has M parts, and local rank m of each host owns
    part m: it sums the part over its host, exchanges the sum with local rank m of the other hosts
    as ``allreduce`` does, and leaves the mean in shared memory for all.  Sums go in the order of
    local ranks, then of hosts: the same bits on all ranks and in all runs.
    """

    needs_all_ranks = "ranks of a host wait for each other in shared memory"
    copies = True

    def __init__(self, cluster: Cluster, settings: ExchangeSettings):
        super().__init__(cluster, settings)
        self._nodes = nodes(cluster.hosts)
        self._leaders = min(map(len, self._nodes))
        self._window: Window | None = None
        self._areas: list[_Area] = []
        self._number: dict[Bucket, int] = {}
        self._rounds: Counter[Bucket] = Counter()
        self._ended: set[int] = set()
        self._direct: DirectMean | None = None

    def supports(self, parameter: Parameter, cluster: Cluster) -> str | None:
        """Refuse a cluster on which no ranks share a host."""
        if max(map(len, self._nodes)) == 1:
            return "no two ranks share a host"
        return None

    def may_help(self, cluster: Cluster) -> bool:
        """Tell whether it spares the network anything.

        On one host MPI's own shared memory is as fast (two ranks, hierarchical to allreduce: 1 MiB
        takes 0.95 of the time, 8 MiB 1.31).
        """
        return len(self._nodes) > 1

    def cost(self, slices: Sequence[Slice], cluster: Cluster) -> Cost:
        """Return the cost of copies within the host, and of messages between the hosts' leaders."""
        hosts = len(self._nodes)
        nbytes = sum(piece.nbytes for piece in slices)
        part = 1 / self._leaders
        # A copy reads and writes; a sum reads all local ranks' and writes one.
        copied = nbytes * (4 + part * (max(map(len, self._nodes)) + 1))
        sent = 2 * self.bytes_on_the_wire(slices) * part * (hosts - 1) / hosts
        return Cost(4 if hosts > 1 else 2, sent, copied=copied)

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Get shared memory; all ranks together."""
        self.close()
        super().prepare(buckets)
        if not buckets:
            return
        cluster = cast("MPICluster", self.cluster)
        ours = self._nodes[self._node]
        largest = max(bucket.nbytes for bucket in buckets)
        nbytes = _Area.nbytes(largest, len(ours))
        count = min(AREAS, len(buckets))
        self._window = cluster.windows.shared(cluster.node_communicator(), count * nbytes)
        parts = (self._window.memory[i * nbytes : (i + 1) * nbytes] for i in range(count))
        self._areas = [_Area(part, len(ours)) for part in parts]
        self._number = {bucket: number for number, bucket in enumerate(buckets)}
        self._direct = DirectMean(cluster.exchange_communicator)
        cluster.barrier()
        if cluster.rank == ours[0]:  # the memory may have been used before
            for area in self._areas:
                area.arrived[:] = area.finished[:] = 0
            self._window.win.Sync()
        cluster.barrier()

    @property
    def _node(self) -> int:
        return next(n for n, ranks in enumerate(self._nodes) if self.cluster.rank in ranks)

    def mean(self, values: np.ndarray, bucket: Bucket) -> Task:
        """Replace ``values`` (one axis) by their mean over ranks."""
        assert self._window is not None
        ours = self._nodes[self._node]
        me = ours.index(self.cluster.rank)
        order = self._rounds[bucket] * len(self._number) + self._number[bucket]
        self._rounds[bucket] += 1
        area = self._areas[order % len(self._areas)]
        yield Step([], late=self._area_is_taken(order))
        self._ended.discard(order - len(self._areas))
        segments, result = area.arrays(values)
        np.copyto(segments[me], values)
        self._raise_flag(area.arrived, me, order)
        if me < self._leaders:
            yield Step([], late=_missing(area.arrived, order, ours))
            self._window.win.Sync()
            yield from self._mean_of_part(me, segments, result, bucket)
            self._raise_flag(area.finished, me, order)
        yield Step([], late=_missing(area.finished[: self._leaders], order, ours))
        self._window.win.Sync()
        np.copyto(values, result)
        self._ended.add(order)

    def _area_is_taken(self, order: int) -> Callable[[], Sequence[int]]:
        """Return a function that names this rank until it has done with the area's last use."""
        before = order - len(self._areas)

        def late() -> Sequence[int]:
            return [self.cluster.rank] if before >= 0 and before not in self._ended else []

        return late

    def _raise_flag(self, flags: np.ndarray, me: int, order: int) -> None:
        """Let the host's ranks know of what has been written before."""
        assert self._window is not None
        self._window.win.Sync()
        flags[me] = order + 1
        self._window.win.Sync()

    def _mean_of_part(
        self, me: int, segments: list[np.ndarray], result: np.ndarray, bucket: Bucket
    ) -> Task:
        """Set this local rank's part of ``result`` to the mean over all ranks."""
        assert self._direct is not None
        residual = self.residual(result, bucket)
        whole = Values(result, self.wire(result.dtype), residual)
        begin, end = (result.size * i // self._leaders for i in (me, me + 1))
        part = whole.part(begin, end)
        sum_in_rank_order([segment[begin:end] for segment in segments], part.array)
        ranks = self.cluster.size
        if len(self._nodes) == 1:
            mean_in_rank_order([part.array], ranks, part.array)
            return
        alike = [node[me] for node in self._nodes]
        yield from self._direct.steps(part, alike, self._node, ranks, 2 * bucket.number)

    def close(self) -> None:
        """Give the window back; waits for nothing."""
        super().close()
        if self._window is not None:
            cast("MPICluster", self.cluster).windows.give_back(self._window)
        self._window = None
        self._areas.clear()
        self._number.clear()
        self._rounds.clear()
        self._ended.clear()


def nodes(hosts: Sequence[str]) -> list[list[int]]:
    """Return the ranks of each host, given every rank's; hosts in the order of their first ranks.

    >>> nodes(["a", "b", "a"])
    [[0, 2], [1]]
    """
    found: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return list(found.values())


def _missing(flags: np.ndarray, order: int, ranks: Sequence[int]) -> Callable[[], Sequence[int]]:
    """Return a function that names the ranks whose flags do not count up to ``order`` yet."""

    def late() -> list[int]:
        return [ranks[number] for number in np.flatnonzero(flags <= order).tolist()]

    return late
