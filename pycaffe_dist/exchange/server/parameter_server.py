"""Parameters that live on servers: gradients go to a shard's owner, which sends back weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pycaffe_dist.comm.tasks import Step, Task
from pycaffe_dist.config import ExchangeSettings, UpdatePriority
from pycaffe_dist.exchange.base import (
    Bucket,
    Cost,
    Message,
    Slice,
    UpdateExchange,
    register,
    start_messages,
)
from pycaffe_dist.exchange.buckets import fuse_and_slice
from pycaffe_dist.exchange.server.serving import Header, Kind, Layout, Part, Server, Setup

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.comm.mpi import MPICluster
    from pycaffe_dist.comm.tasks import Handle
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter
    from pycaffe_dist.solvers.update.updater import Updater

# A server's load differs from another's by at most one shard: this many make the difference small.
SHARDS_PER_SERVER = 4
# How many shards are asked for at a time, beside training.
AT_ONCE = 8


@register("parameter_server")
class ParameterServer(UpdateExchange):
    """Every shard has one owner, which alone keeps its history and updates it.

    The owners are all ranks, or the ranks that do not train (``--server-ranks``).  With a staleness
    of 0, all workers' gradients are averaged in the order of ranks, and the same bits result on all
    ranks and in all runs.  It is no choice of ``--exchange=auto``: it moves as many bytes as
    allreduce, which has no owner to wait for and lets the solver see mean gradients.
    """

    needs_all_ranks = "a lost rank takes its part of the history with it"
    automatic = False

    def __init__(self, cluster: Cluster, settings: ExchangeSettings):
        super().__init__(cluster, settings)
        self._owners: dict[Bucket, int] = {}
        self._fused: dict[Bucket, np.ndarray] = {}
        self._headers: dict[Bucket, np.ndarray] = {}
        self._iteration, self._rate = 0, 0.0
        self._random = np.random.default_rng(cluster.rank)

    def supports(self, parameter: Parameter, cluster: Cluster) -> str | None:
        """Refuse what the solver has to see mean gradients for, and what forward changes."""
        if parameter.changes_in_forward:
            return "its layer changes it in forward, which its owner would not see"
        return self.settings.needs_gradients or None

    def cost(self, slices: Sequence[Slice], cluster: Cluster) -> Cost:
        """Return the cost of the busiest rank: gradients up, weights down."""
        nbytes = sum(piece.nbytes for piece in slices)
        workers, owners = cluster.size, len(cluster.owners)
        if cluster.owners == tuple(range(workers)):
            return Cost(2, 2 * nbytes * (workers - 1) / workers)
        return Cost(2, nbytes * max(1.0, workers / owners))

    def seconds(self, parameter: Parameter, cluster: Cluster) -> float:
        """Return the seconds predicted for a parameter; small ones share their shard's messages."""
        whole = Slice(parameter, 0, parameter.blob.count)
        alone = self.cost([whole], cluster)
        share = min(1.0, whole.nbytes / self.settings.bucket_bytes)
        return Cost(alone.messages * share, alone.nbytes).seconds(cluster)

    def group(self, parameters: Sequence[Parameter]) -> list[list[Slice]]:
        """Fuse small parameters, and slice large ones finely enough to divide them evenly."""
        bucket = self.settings.bucket_bytes
        total = sum(Slice(p, 0, p.blob.count).nbytes for p in parameters)
        even = total // (SHARDS_PER_SERVER * len(self.cluster.owners))
        return fuse_and_slice(
            parameters, bucket, min(self.settings.slice_bytes, max(bucket, even, 1))
        )

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Give every bucket an owner: large ones first, each to the rank with the least so far.

        Small parameters that travel together do so through an array: gradients, then weights.
        """
        self.close()
        loads = dict.fromkeys(self.cluster.owners, 0)
        for bucket in sorted(buckets, key=lambda s: (-s.nbytes, s.number)):
            owner = min(loads, key=lambda rank: (loads[rank], rank))
            loads[owner] += bucket.nbytes
            self._owners[bucket] = owner
            if len(bucket.slices) > 1:
                count = sum(piece.end - piece.begin for piece in bucket.slices)
                dtype = bucket.slices[0].parameter.blob.dtype
                self._fused[bucket] = np.empty((2, count), dtype)

    def take_over(self, updater: Updater[Parameter]) -> None:
        """Let servers start, and send them what they need, from rank 0."""
        cluster = cast("MPICluster", self.cluster)
        if not cluster.has_servers:
            Server(cluster).start()
        # Nobody sends anything before all servers have forgotten the run before this one.
        cluster.barrier()
        indices = _indices(updater)
        if cluster.rank == 0:
            cluster.communication.submit(self._set_up(updater.param), "setup of servers").wait()
            self._load(updater, indices)
        cluster.barrier()
        for bucket in self._owners:
            for piece in bucket.slices:
                updater.method.release(indices[piece.parameter.key])

    def begin(self, iteration: int, rate: float) -> None:
        """Take note of the iteration whose gradients come next, and of its learning rate."""
        self._iteration, self._rate = iteration, rate

    def submit(self, bucket: Bucket, order: int) -> Handle:
        """Start to send a bucket's gradient, the most important ones first."""
        priority = self._priority(bucket)
        header = Header(Kind.PUSH, self._iteration, self._rate, priority)
        self._headers[bucket] = header.array()
        return cast("MPICluster", self.cluster).communication.submit(
            self.task(bucket),
            f"exchange {self.type} of {bucket.name}",
            order=order,
            nbytes=bucket.nbytes,
            priority=priority,
        )

    def _priority(self, bucket: Bucket) -> float:
        """Return a waiting bucket's priority: the lowest goes first."""
        wanted = self.settings.update_priority
        if wanted is UpdatePriority.RANDOM:
            return float(self._random.random())
        if wanted is UpdatePriority.RELATIVE_MAGNITUDE:
            gradient = sum(_square(piece.gradient) for piece in bucket.slices)
            weights = sum(_square(piece.weights) for piece in bucket.slices)
            return -gradient / weights if weights else -np.inf
        return bucket.priority

    def steps(self, bucket: Bucket) -> Task:
        """Send the gradient to its owner, and receive weights in place."""
        if not bucket.nbytes:
            return
        weights = self._room(bucket)
        gradient = bucket.slices[0].gradient
        if bucket in self._fused:
            gradient = self._fused[bucket][0]
            np.concatenate([piece.gradient for piece in bucket.slices], out=gradient)
        yield self._ask(bucket, self._headers[bucket], weights, gradient)
        self._put_into_place(bucket, weights)

    def _room(self, bucket: Bucket) -> np.ndarray:
        """Return the array that receives a bucket's weights."""
        fused = self._fused.get(bucket)
        return bucket.slices[0].weights if fused is None else fused[1]

    def _put_into_place(self, bucket: Bucket, weights: np.ndarray) -> None:
        if bucket not in self._fused:
            return
        begin = 0
        for piece in bucket.slices:
            count = piece.end - piece.begin
            piece.weights[:] = weights[begin : begin + count]
            begin += count

    def _ask(self, bucket: Bucket, header: np.ndarray, room: np.ndarray, *body: np.ndarray) -> Step:
        """Send a header, and what follows it, to a bucket's owner; receive into ``room``."""
        cluster = cast("MPICluster", self.cluster)
        owner, tag = self._owners[bucket], bucket.number
        receives = [Message(room, owner, tag)]
        sends = [Message(array, owner, tag) for array in (header, *body)]
        answer = start_messages(cluster.answers, receives, [])
        request = start_messages(cluster.requests, [], sends)
        nbytes = 0 if owner == cluster.world_rank else request.nbytes
        return Step(answer.requests + request.requests, answer.ranks + request.ranks, nbytes)

    def _ask_all(
        self,
        header: Header,
        room: Callable[[Bucket], np.ndarray],
        body: Callable[[Bucket], list[np.ndarray]],
        use: Callable[[Bucket, np.ndarray], None],
    ) -> None:
        """Ask for something for all buckets: receive it into ``room``, then ``use`` it."""

        def task() -> Task:
            buckets = [bucket for bucket in self._owners if bucket.nbytes]
            for first in range(0, len(buckets), AT_ONCE):
                some = buckets[first : first + AT_ONCE]
                rooms = [room(bucket) for bucket in some]
                steps = [self._ask(s, header.array(), r, *body(s)) for s, r in zip(some, rooms)]
                yield Step(
                    [request for step in steps for request in step.requests],
                    tuple(rank for step in steps for rank in step.ranks),
                )
                for bucket, received in zip(some, rooms):
                    use(bucket, received)

        communication = cast("MPICluster", self.cluster).communication
        communication.submit(task(), f"{header.kind.name.lower()} of {self.type}").wait()

    def _set_up(self, param: SolverParameter) -> Task:
        """Tell every server what it serves."""
        cluster = cast("MPICluster", self.cluster)
        requests: list[Any] = []
        ranks: tuple[int, ...] = ()
        for owner in cluster.owners:
            layouts = tuple(
                _layout(s) for s, of in self._owners.items() if of == owner and s.nbytes
            )
            setup = Setup(param, cluster.size, self.settings.staleness, layouts)
            body = np.frombuffer(setup.encode(), np.uint8)
            header = Header(Kind.SETUP, extra=body.size).array()
            for step in (
                start_messages(cluster.answers, [Message(np.empty(1, np.uint8), owner, 0)], []),
                start_messages(
                    cluster.requests, [], [Message(header, owner, 0), Message(body, owner, 0)]
                ),
            ):
                requests += step.requests
                ranks += step.ranks
        yield Step(requests, ranks)

    def _load(self, updater: Updater[Parameter], indices: dict[str, int]) -> None:
        """Send all servers this rank's weights, and its history if there is any."""
        held = any(updater.method.holds(index) for index in indices.values())

        def body(bucket: Bucket) -> list[np.ndarray]:
            rows = [[piece.weights for piece in bucket.slices]]
            for slot in range(updater.method.slots if held else 0):
                rows.append(
                    [
                        updater.method.slot(indices[piece.parameter.key], slot).reshape(-1)[
                            piece.begin : piece.end
                        ]
                        for piece in bucket.slices
                    ]
                )
            return [np.concatenate([array for row in rows for array in row])]

        self._ask_all(
            Header(Kind.LOAD, extra=held),
            lambda bucket: np.empty(1, np.uint8),
            body,
            lambda bucket, received: None,
        )

    def synchronize(self) -> None:
        """Give all ranks the weights that all updates so far make, the same everywhere."""
        if not self.settings.staleness:
            return
        # Every worker has got weights for its last gradient, so all gradients have arrived.
        self.cluster.barrier()
        self._ask_all(Header(Kind.PULL), self._room, lambda bucket: [], self._put_into_place)
        self.cluster.barrier()

    def collect_history(self, updater: Updater[Parameter]) -> dict[tuple[int, int], np.ndarray]:
        """Return, on rank 0, the history of its parameters by slot and index in the updater."""
        found: dict[tuple[int, int], np.ndarray] = {}
        slots = updater.method.slots
        indices = _indices(updater)

        def room(bucket: Bucket) -> np.ndarray:
            slices = bucket.slices
            count = sum(piece.end - piece.begin for piece in slices)
            return np.empty((slots, count), slices[0].parameter.blob.dtype)

        def use(bucket: Bucket, received: np.ndarray) -> None:
            begin = 0
            for piece in bucket.slices:
                blob, count = piece.parameter.blob, piece.end - piece.begin
                for slot in range(slots):
                    place = slot, indices[piece.parameter.key]
                    array = found.setdefault(place, np.zeros(blob.shape, blob.dtype))
                    array.reshape(-1)[piece.begin : piece.end] = received[slot][
                        begin : begin + count
                    ]
                begin += count

        if self.cluster.rank == 0:
            self._ask_all(Header(Kind.HISTORY), room, lambda bucket: [], use)
        if self.settings.staleness:
            # Others would change it; synchronous ones wait for this rank's next gradient.
            self.cluster.barrier()
        return found

    def close(self) -> None:
        """Forget the run; this rank's server goes on for the others."""
        self._owners.clear()
        self._fused.clear()
        self._headers.clear()


def _square(array: np.ndarray) -> float:
    """Return the squared norm of an array of one axis."""
    return float(np.dot(array, array))


def _indices(updater: Updater[Parameter]) -> dict[str, int]:
    return {parameter.key: index for index, parameter in enumerate(updater.targets)}


def _layout(bucket: Bucket) -> Layout:
    parts = tuple(
        Part(
            piece.parameter.key,
            piece.end - piece.begin,
            piece.parameter.lr_mult,
            piece.parameter.decay_mult,
            piece.parameter.regularization,
        )
        for piece in bucket.slices
    )
    return Layout(bucket.number, bucket.slices[0].parameter.blob.dtype.name, parts)
