"""The mean gradient by direct messages: every rank sums its share, then all collect the shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from pycaffe_dist.comm.tasks import Task
from pycaffe_dist.config import ExchangeSettings
from pycaffe_dist.device import xp
from pycaffe_dist.exchange.base import (
    Bucket,
    Cost,
    Message,
    Slice,
    mean_in_rank_order,
    register,
    start_messages,
)
from pycaffe_dist.exchange.buckets import FusingExchange
from pycaffe_dist.exchange.wire_format import WireFormat

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.comm.mpi import MPICluster
    from pycaffe_dist.net.parameter import Parameter


class Values(NamedTuple):
    """Numbers to combine (one axis), the form in which they travel, and what rounding lost."""

    array: np.ndarray
    wire: WireFormat
    residual: np.ndarray | None

    def shares(self, count: int) -> list[Values]:
        """Cut the numbers into ``count`` parts of nearly equal size."""
        cuts = [self.array.size * i // count for i in range(count + 1)]
        return [self.part(begin, end) for begin, end in pairwise(cuts)]

    def part(self, begin: int, end: int) -> Values:
        """Return the numbers [begin, end)."""
        residual = None if self.residual is None else self.residual[begin:end]
        return Values(self.array[begin:end], self.wire, residual)

    def pack(self) -> np.ndarray:
        """Return what to send."""
        return self.wire.pack(self.array, self.residual)

    def settle(self) -> np.ndarray:
        """Return what to send, and set the numbers to what arrives."""
        return self.wire.settle(self.array, self.residual)


def _at_once() -> Task:
    yield from ()


class DirectMean:
    """Reduce-scatter and allgather, point to point, in place.

    Messages find each other by tags, so that the ranks need not agree on an order.  Sums go in the
    order of ranks: the result has the same bits on all ranks and in all runs.  The numbers are on
    the current device, where sums may be made later than they are asked for: ``computed`` waits.
    """

    def __init__(self, communicator: Any, computed: Callable[[], Task] = _at_once):
        self._communicator, self._computed = communicator, computed
        self._spare: list[np.ndarray] = []

    def steps(self, values: Values, members: Sequence[int], me: int, ranks: int, tag: int) -> Task:
        """Replace ``values`` by their sum over ``members`` (ranks), divided by ``ranks``.

        This rank is number ``me`` of them; ``tag`` and the next one are the messages'.
        """
        shares = values.shares(len(members))
        mine = shares[me]
        # Each rank begins with the next one, so that no rank gets all messages at once.
        others = [(me + distance) % len(members) for distance in range(1, len(members))]

        scratch = self._take(mine.array.dtype, len(others) * mine.array.size)
        theirs = list(np.split(scratch[: len(others) * mine.array.size], max(1, len(others))))
        rooms = [values.wire.room(row) for row in theirs]
        # The gradients must be computed, and the scratch array's memory must be free.
        yield from self._computed()
        yield start_messages(
            self._communicator,
            [Message(room, members[other], tag) for other, room in zip(others, rooms)],
            [Message(shares[other].pack(), members[other], tag) for other in others],
        )
        parts = {me: mine.array}
        for other, row, room in zip(others, theirs, rooms):
            values.wire.unpack(room, row)
            parts[other] = row
        mean_in_rank_order([parts[number] for number in range(len(members))], ranks, mine.array)
        yield from self._computed()
        self._spare.append(scratch)

        packed = mine.settle()
        rooms = [values.wire.room(shares[other].array) for other in others]
        yield start_messages(
            self._communicator,
            [Message(room, members[other], tag + 1) for other, room in zip(others, rooms)],
            [Message(packed, members[other], tag + 1) for other in others],
        )
        for other, room in zip(others, rooms):
            values.wire.unpack(room, shares[other].array)

    def _take(self, dtype: np.dtype, count: int) -> np.ndarray:
        """Return a spare array of at least ``count`` elements, or a new one."""
        for index, array in enumerate(self._spare):
            if array.dtype == dtype and array.size >= count:
                return self._spare.pop(index)
        return xp().empty(count, dtype)


@register("allreduce")
class Allreduce(FusingExchange):
    """Every rank sums one share of a gradient, then all collect the shares."""

    def __init__(self, cluster: Cluster, settings: ExchangeSettings):
        super().__init__(cluster, settings)
        self._direct: DirectMean | None = None

    def cost(self, slices: Sequence[Slice], cluster: Cluster) -> Cost:
        """Return the cost of two rounds in which a rank sends a share to every other."""
        nbytes = self.bytes_on_the_wire(slices)
        return Cost(2, 2 * nbytes * (cluster.size - 1) / cluster.size)

    def seconds(self, parameter: Parameter, cluster: Cluster) -> float:
        """Return the seconds predicted for a parameter; small ones share their bucket's rounds."""
        whole = Slice(parameter, 0, parameter.blob.count)
        alone = self.cost([whole], cluster)
        share = min(1.0, whole.nbytes / self.settings.bucket_bytes)
        return replace(alone, messages=alone.messages * share).seconds(cluster)

    def direct_mean(self, communicator: Any) -> DirectMean:
        """Return what moves the messages."""
        return DirectMean(communicator)

    def mean(self, values: np.ndarray, bucket: Bucket) -> Task:
        """Replace ``values`` (one axis) by their mean over ranks."""
        cluster = self.cluster
        if self._direct is None:
            self._direct = self.direct_mean(cast("MPICluster", cluster).exchange_communicator)
        travelling = Values(values, self.wire(values.dtype), self.residual(values, bucket))
        tag = 2 * bucket.number
        yield from self._direct.steps(
            travelling, range(cluster.size), cluster.rank, cluster.size, tag
        )
