"""The mean gradient by puts into the other ranks' memory, each announced to the rank that waits.

The receiver takes no part in a transfer: a rank puts numbers into a window of another rank, makes
sure that they have arrived, and sends word.  After Kuehn, Keuper and Pfreundt, "Using GPI-2 for
distributed memory parallelization of the Caffe toolbox to speed up deep neural network training"
(2017), with MPI's windows in place of GPI-2's segments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from pycaffe_dist.comm.tasks import Step, Task
from pycaffe_dist.config import ExchangeSettings
from pycaffe_dist.errors import ClusterError
from pycaffe_dist.exchange.allreduce import Values
from pycaffe_dist.exchange.base import Bucket, Cost, Slice, mean_in_rank_order, register
from pycaffe_dist.exchange.buckets import FusingExchange

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.comm.mpi import MPICluster
    from pycaffe_dist.comm.rma import Window

# A put must not wait for other buckets' puts to the same rank, so there are several windows.
LANES = 4
# Two iterations' puts have different memory, because a rank may still read one iteration's when the
# next one's arrive.  The third can use the first's: nobody puts it before all ranks have read that.
BUFFERS = 2
_ALIGNMENT = 64


class _Slots(NamedTuple):
    """The target of a bucket's puts: the window of a lane, with ``slots`` slots per buffer."""

    lane: int
    begin: int
    nbytes: int
    slots: int

    def offset(self, iteration: int, slot: int) -> int:
        """Return where a slot begins in an iteration (a count of the bucket's exchanges)."""
        return self.begin + ((iteration % BUFFERS) * self.slots + slot) * self.nbytes


class _Lane:
    """A window, and the ranks to which a put through it is under way."""

    def __init__(self, window: Window):
        self.window = window
        self.busy: set[int] = set()

    def put(self, array: np.ndarray, target: int, offset: int) -> Task:
        """Put ``array`` into the window of ``target``; ends when it is there."""
        while target in self.busy:
            yield Step([], late=lambda: [target] if target in self.busy else [])
        self.busy.add(target)
        raw = array.view(np.uint8)
        request = self.window.win.Rput(raw, target, offset)
        yield Step([request], (target,), raw.nbytes)
        # The request is complete when ``array`` may be used again.  The flush, after which the
        # target may read the numbers, takes hardly any time, for no other put is under way.
        self.window.win.Flush(target)
        self.busy.discard(target)

    def received(self, offset: int, count: int, dtype: np.dtype) -> np.ndarray:
        """Return what has been put here, once its sender has sent word."""
        self.window.win.Sync()
        nbytes = count * dtype.itemsize
        return self.window.memory[offset : offset + nbytes].view(dtype)


@register("one_sided")
class OneSided(FusingExchange):
    """Puts round a ring for large gradients, up and down a tree for small ones.

    In the ring, each of P shares goes from rank to rank, which add theirs, and then round once more
    as the mean: 2·(P-1) puts of a P-th.  In the (binomial) tree, sums go up to rank 0 and the mean
    comes down: 2·log2(P) puts of everything.  Each sum is made once, in an order that is fixed: the
    result has the same bits on all ranks and in all runs.
    """

    needs_all_ranks = "MPI cannot take memory back to which a lost rank may write"
    automatic = False  # every put is two messages, one after the other

    def __init__(self, cluster: Cluster, settings: ExchangeSettings):
        super().__init__(cluster, settings)
        self._lanes: list[_Lane] = []
        self._slots: dict[Bucket, _Slots] = {}
        self._iterations: Counter[Bucket] = Counter()

    def cost(self, slices: Sequence[Slice], cluster: Cluster) -> Cost:
        """Return the cost of the ring or the tree; a notification follows each put."""
        nbytes = self.bytes_on_the_wire(slices)
        if self._by_tree(sum(piece.nbytes for piece in slices)):
            rounds = 2 * _levels(cluster.size)
            return Cost(2 * rounds, rounds * nbytes)
        rounds = 2 * (cluster.size - 1)
        return Cost(2 * rounds, rounds * nbytes / cluster.size)

    def _by_tree(self, nbytes: int) -> bool:
        return nbytes <= self.settings.bucket_bytes

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Give every bucket its slots, and get windows for them; all ranks together."""
        self.close()
        super().prepare(buckets)
        if not buckets:
            return
        sizes = [0] * LANES
        for number, bucket in enumerate(buckets):
            lane = number % LANES
            nbytes, count = self._slot_size(bucket)
            self._slots[bucket] = _Slots(lane, sizes[lane], nbytes, count)
            sizes[lane] += BUFFERS * count * nbytes
        cluster = cast("MPICluster", self.cluster)
        for nbytes in sizes:
            window = cluster.windows.remote(cluster.exchange_communicator, nbytes)
            self._lanes.append(_Lane(window))

    def _slot_size(self, bucket: Bucket) -> tuple[int, int]:
        """Return the bytes of a slot, and how many there are."""
        ranks = self.cluster.size
        dtype = bucket.slices[0].parameter.blob.dtype
        count = sum(piece.end - piece.begin for piece in bucket.slices)
        slots = _levels(ranks) + 1
        if not self._by_tree(bucket.nbytes):
            count, slots = -(-count // ranks), 2 * (ranks - 1)
        size, dtype = self.wire(dtype).words(np.empty(count, dtype))
        return -(-size * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT, slots

    def mean(self, values: np.ndarray, bucket: Bucket) -> Task:
        """Replace ``values`` (one axis) by their mean over ranks."""
        iteration = self._iterations[bucket]
        self._iterations[bucket] += 1
        transfer = _Transfer(self, bucket, iteration)
        travelling = Values(values, self.wire(values.dtype), self.residual(values, bucket))
        if self._by_tree(bucket.nbytes):
            yield from transfer.tree(travelling)
        else:
            yield from transfer.ring(travelling)

    def place(self, bucket: Bucket) -> tuple[_Lane, _Slots]:
        """Return where a bucket's puts go."""
        slots = self._slots[bucket]
        return self._lanes[slots.lane], slots

    def close(self) -> None:
        """Give the windows back; waits for nothing."""
        super().close()
        for lane in self._lanes:
            cast("MPICluster", self.cluster).windows.give_back(lane.window)
        self._lanes.clear()
        self._slots.clear()
        self._iterations.clear()


class _Transfer:
    """One bucket in one iteration, on this rank."""

    def __init__(self, exchange: OneSided, bucket: Bucket, iteration: int):
        cluster = cast("MPICluster", exchange.cluster)
        self._communicator = cluster.exchange_communicator
        self._rank, self._ranks = cluster.rank, cluster.size
        self._lane, self._slots = exchange.place(bucket)
        self._bucket, self._iteration = bucket, iteration
        self._tag = 2 * bucket.number
        self._words: list[Any] = []  # that have been sent, until they are known to be on their way

    def ring(self, values: Values) -> Task:
        """Send shares round: first to be summed, then as means."""
        rank, ranks = self._rank, self._ranks
        left, right = (rank - 1) % ranks, (rank + 1) % ranks
        shares = values.shares(ranks)
        for step in range(ranks - 1):
            yield from self._put(shares[(rank - step) % ranks].pack(), right, step)
            share = shares[(rank - step - 1) % ranks]
            so_far = np.empty_like(share.array)
            packed = yield from self._get(share, left, step)
            share.wire.unpack(packed, so_far)
            np.add(so_far, share.array, out=share.array)
        own = shares[right]
        mean_in_rank_order([own.array], ranks, own.array)
        packed = own.settle()
        for step in range(ranks - 1):
            slot = ranks - 1 + step
            yield from self._put(packed, right, slot)
            share = shares[(rank - step) % ranks]
            packed = yield from self._get(share, left, slot)
            share.wire.unpack(packed, share.array)
        yield Step(self._words)

    def tree(self, values: Values) -> Task:
        """Send sums up to rank 0, and the mean down."""
        rank = self._rank
        children = _children(rank, self._ranks)
        down = self._slots.slots - 1
        total, theirs = values.array, np.empty_like(values.array)
        for level, child in enumerate(children):
            packed = yield from self._get(values, child, level)
            values.wire.unpack(packed, theirs)
            np.add(total, theirs, out=total)
        if rank == 0:
            mean_in_rank_order([total], self._ranks, total)
            packed = values.settle()
        else:
            parent, level = _parent(rank)
            yield from self._put(values.pack(), parent, level)
            packed = yield from self._get(values, parent, down)
            values.wire.unpack(packed, total)
        for child in reversed(children):  # the one with most ranks below it first
            yield from self._put(packed, child, down)
        yield Step(self._words)

    def _put(self, packed: np.ndarray, target: int, slot: int) -> Task:
        """Put numbers into a slot of ``target``, and then send word of it."""
        if packed.size:
            yield from self._lane.put(packed, target, self._slots.offset(self._iteration, slot))
            word = np.array([self._iteration, slot])
            self._words.append(self._communicator.Isend(word, target, self._tag))

    def _get(self, values: Values, source: int, slot: int) -> Task:
        """Wait for word of ``source``; return what it has put into the slot here."""
        size, dtype = values.wire.words(values.array)
        if size:
            word = np.empty(2, np.int64)
            request = self._communicator.Irecv(word, source, self._tag)
            yield Step([request], (source,))
            if word.tolist() != [self._iteration, slot]:
                raise ClusterError(
                    f"{self._bucket.name}: rank {source} is at step {word[1]} of its exchange "
                    f"number {word[0]}, this rank at step {slot} of number {self._iteration}"
                )
        offset = self._slots.offset(self._iteration, slot)
        return self._lane.received(offset, size, dtype)


def _levels(ranks: int) -> int:
    """Return the levels of a binomial tree, which are the most children of one rank."""
    return (ranks - 1).bit_length()


def _parent(rank: int) -> tuple[int, int]:
    """Return a rank's parent in the binomial tree, and which child it is of this one."""
    lowest = rank & -rank
    return rank - lowest, lowest.bit_length() - 1


def _children(rank: int, ranks: int) -> list[int]:
    """Return a rank's children in the binomial tree: missing children come last."""
    levels = (rank & -rank).bit_length() - 1 if rank else _levels(ranks)
    return [rank + (1 << level) for level in range(levels) if rank + (1 << level) < ranks]
