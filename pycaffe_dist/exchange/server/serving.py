"""The serving side of the parameter server: a rank's shards, their history, waiting workers.

A worker at clock c has made c updates.  With staleness S it goes on once every other worker has
made at least c - S.  The weights that it then gets hold these updates, and all of its own.  This is
the consistency of Ho et al., "More effective distributed ML via a stale synchronous
parallel parameter server" (NIPS 2013).
"""

from __future__ import annotations

import base64
import enum
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from pycaffe_dist.comm.tasks import Task
from pycaffe_dist.errors import ClusterError
from pycaffe_dist.exchange.base import Message, mean_in_rank_order, start_messages
from pycaffe_dist.solvers.update.target import ArrayTarget

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.comm.mpi import MPICluster
    from pycaffe_dist.schema import caffe_pb2
    from pycaffe_dist.solvers.update.updater import Updater

WATCH = "parameter server"


class Kind(enum.IntEnum):
    """What a message to a server asks for."""

    SETUP = 0  # take these shards; a description follows
    LOAD = 1  # take a shard's weights, and its history if told so; they follow
    PUSH = 2  # apply a gradient, which follows, and send weights when the staleness allows it
    PULL = 3  # send weights
    HISTORY = 4  # send history


class Header(NamedTuple):
    """What precedes what a worker sends; the message's tag is the number of the bucket.

    ``extra`` is the description's size in SETUP, whether history follows in LOAD, and the priority
    of the answer in PUSH.
    """

    kind: Kind
    iteration: int = 0
    rate: float = 0.0
    extra: float = 0.0

    def array(self) -> np.ndarray:
        """Return it as it travels."""
        return np.array(self, np.float64)

    @classmethod
    def of(cls, array: np.ndarray) -> Header:
        """Return what :meth:`array` gave."""
        kind, iteration, rate, extra = array.tolist()
        return cls(Kind(int(kind)), int(iteration), rate, extra)


class Part(NamedTuple):
    """The stretch of a parameter in a shard: what its update depends on."""

    key: str
    length: int
    lr_mult: float
    decay_mult: float
    regularization: str = ""


class Layout(NamedTuple):
    """A shard: the parts of one bucket, one after the other."""

    number: int
    dtype: str
    parts: tuple[Part, ...]

    @property
    def length(self) -> int:
        """The number of weights."""
        return sum(part.length for part in self.parts)

    @property
    def name(self) -> str:
        """The parameters' names, for messages."""
        return ", ".join(part.key for part in self.parts)


class Setup(NamedTuple):
    """What a server needs to know: the solver, the number of workers, the staleness, its shards."""

    solver: caffe_pb2.SolverParameter
    workers: int
    staleness: int
    layouts: tuple[Layout, ...]

    def encode(self) -> bytes:
        """Return it as it travels."""
        solver = base64.b64encode(self.solver.SerializeToString()).decode()
        return json.dumps([solver, *self[1:]]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Setup:
        """Return what :meth:`encode` gave."""
        from pycaffe_dist.schema import caffe_pb2

        solver, workers, staleness, layouts = json.loads(data)
        param = caffe_pb2.SolverParameter.FromString(base64.b64decode(solver))
        return cls(
            param,
            workers,
            staleness,
            tuple(
                Layout(number, dtype, tuple(Part(*part) for part in parts))
                for number, dtype, parts in layouts
            ),
        )


class Answer(NamedTuple):
    """Weights that are due to a worker."""

    worker: int
    priority: float


class _Waiting(NamedTuple):
    priority: float
    since: float


class Shard:
    """A shard's weights and clocks.  Its history is with ``updater``, from index ``first`` on."""

    def __init__(self, layout: Layout, workers: int, staleness: int):
        self.layout = layout
        self.weights = np.zeros(layout.length, layout.dtype)
        self.clocks = [0] * workers  # how many updates of each worker have arrived
        self.waiting: dict[int, _Waiting] = {}  # workers that have not got weights yet
        self.first = 0
        self.updater: Updater[ArrayTarget] | None = None
        self._staleness = staleness
        self._round: dict[int, np.ndarray] = {}
        self._iteration = 0  # of the current round
        self.targets = list(self._make_targets())  # the parts; each push brings their gradients

    def _make_targets(self) -> Iterator[ArrayTarget]:
        nothing = np.empty(0, self.weights.dtype)
        begin = 0
        for part in self.layout.parts:
            weights = self.weights[begin : begin + part.length]
            settings = part.lr_mult, part.decay_mult, part.regularization
            yield ArrayTarget(weights, nothing, *settings)
            begin += part.length

    def push(
        self, worker: int, gradient: np.ndarray, header: Header, now: float
    ) -> tuple[list[Answer], list[np.ndarray]]:
        """Take a worker's gradient; return the answers that are due, and arrays of no more use.

        Synchronous workers' gradients are averaged in the order of ranks, once all are there.
        Others are applied as they arrive, with the rate divided by the number of workers: as many
        updates as there are workers make the step of one.
        """
        workers = len(self.clocks)
        self.clocks[worker] += 1
        self.waiting[worker] = _Waiting(header.extra, now)
        used: list[np.ndarray] = []
        if self._staleness:
            # Since its history was zero, a shard has been updated this often by all together.
            started = header.iteration + 1 - self.clocks[worker]
            updates = started * workers + sum(self.clocks) - 1
            self._update(gradient, header.rate / workers, updates)
            used = [gradient]
        else:
            self._add(worker, gradient, header.iteration)
            if len(self._round) == workers:
                parts = [self._round[w] for w in range(workers)]
                mean_in_rank_order(parts, workers, parts[0])
                self._update(parts[0], header.rate, header.iteration)
                self._round.clear()
                used = parts
        return self._due(), used

    def _add(self, worker: int, gradient: np.ndarray, iteration: int) -> None:
        """Let a gradient take part in the round; raises ClusterError when it is of another one."""
        if self._round and iteration != self._iteration:
            (other, *_) = self._round
            raise ClusterError(
                f"{self.layout.name}: rank {worker} is in iteration {iteration}, "
                f"rank {other} in iteration {self._iteration}"
            )
        self._iteration = iteration
        self._round[worker] = gradient

    def _due(self) -> list[Answer]:
        reached = min(self.clocks) + self._staleness
        due = [worker for worker in self.waiting if self.clocks[worker] <= reached]
        return [Answer(worker, self.waiting.pop(worker).priority) for worker in due]

    def _update(self, gradient: np.ndarray, rate: float, iteration: int) -> None:
        assert self.updater is not None
        begin = 0
        for index, target in enumerate(self.targets, self.first):
            end = begin + target.weights.size
            target.gradient = gradient[begin:end]
            self.updater.update(index, rate, iteration)
            begin = end

    def load(self, values: np.ndarray) -> None:
        """Take weights, and history if it follows them."""
        count = self.layout.length
        self.weights[:] = values[:count]
        if values.size == count:
            return
        for target, source in zip(self._history(), values.reshape(-1, count)[1:]):
            begin = 0
            for array in target:
                array[:] = source[begin : begin + array.size]
                begin += array.size

    def history(self) -> np.ndarray:
        """Return a copy of the history: (slots, count)."""
        return np.array([np.concatenate(slot) for slot in self._history()])

    def _history(self) -> list[list[np.ndarray]]:
        """Return the history's arrays, a list per slot."""
        assert self.updater is not None
        method = self.updater.method
        indices = range(self.first, self.first + len(self.layout.parts))
        return [[method.slot(index, slot) for index in indices] for slot in range(method.slots)]


def make_shards(setup: Setup) -> dict[int, Shard]:
    """Return the shards of a description, by number, and one updater for all of them."""
    from pycaffe_dist.solvers.update.updater import Updater

    shards = [Shard(layout, setup.workers, setup.staleness) for layout in setup.layouts]
    targets: list[ArrayTarget] = []
    for shard in shards:
        shard.first = len(targets)
        targets += shard.targets
    updater = Updater(setup.solver, targets)
    for shard in shards:
        shard.updater = updater
    return {shard.layout.number: shard for shard in shards}


class Server:
    """Serves shards to workers; lives in the communication thread of ``cluster``.

    ``start`` lets it serve, until another one is started or the cluster is closed: a worker that is
    done still serves the others.
    """

    def __init__(self, cluster: MPICluster):
        self._cluster = cluster
        self._communication = cluster.communication
        self._requests, self._answers = cluster.requests, cluster.answers
        self._shards: dict[int, Shard] = {}
        self._staleness = 0
        self._slots = 1
        self._spare: list[np.ndarray] = []
        self._error: BaseException | None = None
        self._looked_at = 0.0
        self._reported: set[tuple[int, int]] = set()  # workers' and shards' numbers

    def start(self) -> None:
        """Serve from now on."""
        from mpi4py import MPI

        self._any = MPI.ANY_SOURCE, MPI.ANY_TAG
        self._status = MPI.Status()
        self._communication.watch(WATCH, self.look).wait()

    def look(self, now: float) -> bool:
        """Start what messages ask for; tell whether there were any."""
        if self._error is not None:
            raise self._error
        found = False
        while self._requests.Iprobe(*self._any, self._status):
            worker, number = self._status.Get_source(), self._status.Get_tag()
            array = Header(Kind.PULL).array()
            self._requests.Recv(array, worker, number)
            self._serve(worker, number, Header.of(array))
            found = True
        if now - self._looked_at > 1.0:
            self._looked_at = now
            self._report_stall(now)
        return found

    def _serve(self, worker: int, number: int, header: Header) -> None:
        if header.kind is Kind.SETUP:
            body = np.empty(int(header.extra), np.uint8)
            self._receive(body, worker, number, header)
            return
        shard = self._shards[number]
        if header.kind is Kind.PUSH:
            self._receive(self._take(shard.weights), worker, number, header)
        elif header.kind is Kind.LOAD:
            rows = 1 + self._slots if header.extra else 1
            body = np.empty(rows * shard.weights.size, shard.weights.dtype)
            self._receive(body, worker, number, header)
        else:
            values = shard.weights if header.kind is Kind.PULL else shard.history()
            self._answer(values.copy(), worker, number)

    def _receive(self, body: np.ndarray, worker: int, number: int, header: Header) -> None:
        """Receive what follows a header, and go on with it."""
        # The receive must be there before the next probe, which would find the body instead.
        step = start_messages(self._requests, [Message(body, worker, number)], [])

        def task() -> Task:
            yield step
            try:
                self._use(body, worker, number, header)
            except BaseException as error:  # nobody waits for this task
                self._error = error

        self._communication.submit(task(), f"{header.kind.name.lower()} from rank {worker}")

    def _use(self, body: np.ndarray, worker: int, number: int, header: Header) -> None:
        if header.kind is Kind.SETUP:
            setup = Setup.decode(body.tobytes())
            self._shards = make_shards(setup)
            self._staleness = setup.staleness
            self._slots = _slots(self._shards)
            self._reported.clear()
            self._spare.clear()
        elif header.kind is Kind.LOAD:
            self._shards[number].load(body)
        else:
            self._push(self._shards[number], body, worker, header)
            return
        self._answer(np.zeros(1, np.uint8), worker, number)

    def _push(self, shard: Shard, gradient: np.ndarray, worker: int, header: Header) -> None:
        now = self._looked_at
        answers, used = shard.push(worker, gradient, header, now)
        self._spare += used
        for answer in answers:
            self._reported.discard((answer.worker, shard.layout.number))
            self._communication.submit(
                self._send_weights(shard, answer.worker),
                f"weights of {shard.layout.name} for rank {answer.worker}",
                paced=True,
                priority=answer.priority,
            )

    def _send_weights(self, shard: Shard, worker: int) -> Task:
        """Send weights as they are when the message starts."""
        weights, number = shard.weights, shard.layout.number
        # Synchronous workers push no more before all have got these; others may at any time.
        sent = self._take(weights) if self._staleness else weights
        if sent is not weights:
            sent[:] = weights
        step = start_messages(self._answers, [], [Message(sent, worker, number)])
        yield step._replace(nbytes=0) if worker == self._cluster.world_rank else step
        if sent is not weights:
            self._spare.append(sent)

    def _answer(self, values: np.ndarray, worker: int, number: int) -> None:
        def task() -> Task:
            yield start_messages(self._answers, [], [Message(values, worker, number)])

        self._communication.submit(task(), f"answer to rank {worker}")

    def _take(self, like: np.ndarray) -> np.ndarray:
        """Return a spare array like this one, or a new one."""
        for index, array in enumerate(self._spare):
            if array.dtype == like.dtype and array.size == like.size:
                return self._spare.pop(index)
        return np.empty_like(like)

    def _report_stall(self, now: float) -> None:
        """Say, once, whom a worker has been waiting for too long."""
        for number, shard in self._shards.items():
            for worker, waiting in shard.waiting.items():
                since = now - waiting.since
                if since < self._communication.stall_seconds or self._reported:
                    continue
                self._reported.add((worker, number))
                print(
                    f"pcaffe: {self._communication.who}: rank {worker} has waited {since:.0f} s "
                    f"for {_slower(shard.clocks, worker)} to update {shard.layout.name}",
                    file=sys.stderr,
                    flush=True,
                )


def _slots(shards: dict[int, Shard]) -> int:
    """Return how many arrays of history the solver's method has."""
    for shard in shards.values():
        if shard.updater is not None:
            return shard.updater.method.slots
    return 1


def _slower(clocks: Sequence[int], worker: int) -> str:
    """Name the ranks that are furthest behind a worker, and the distance."""
    behind = clocks[worker] - min(clocks)
    ranks = [rank for rank, clock in enumerate(clocks) if clock == min(clocks)]
    return (
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} "
        f"({behind} clock{'s' * (behind > 1)} behind)"
    )


def serve(cluster: Cluster) -> None:
    """Serve parameters on a rank that does not train, until the workers leave the cluster."""
    Server(cast("MPICluster", cluster)).start()
    cluster.close()


__all__ = ["Header", "Kind", "Layout", "Part", "Server", "Setup", "Shard", "make_shards", "serve"]
