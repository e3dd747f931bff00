"""What every exchange is: what it moves, for which parameters, at what cost, and how."""

from __future__ import annotations

import abc
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np

from pycaffe_dist.calibration.copies import copy_rate
from pycaffe_dist.calibration.link import link_of
from pycaffe_dist.calibration.products import product_rate
from pycaffe_dist.comm.arrival import wait_for
from pycaffe_dist.comm.measured import Link
from pycaffe_dist.comm.tasks import Step
from pycaffe_dist.config import ExchangeSettings, Wire
from pycaffe_dist.errors import UsageError
from pycaffe_dist.registry import Registry

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.comm.mpi import MPICluster
    from pycaffe_dist.comm.tasks import Handle, Task
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.solvers.engine import Factors
    from pycaffe_dist.solvers.update.updater import Updater


# The name that asks for the cheapest exchange of each parameter.
AUTO = "auto"
# It can combine every parameter, so it gets the parameters that the chosen exchange cannot.
FALLBACK = "allreduce"


class Moves(enum.Enum):
    """What travels between ranks."""

    GRADIENT = "gradient"  # each rank's gradient goes out, the mean gradient comes back
    FACTORS = "factors"  # the layer's two factors go out, the mean gradient is rebuilt from all
    UPDATE = "update"  # the gradient goes out, updated weights come back: the solver leaves it out


@dataclass(frozen=True)
class Slice:
    """The elements [begin, end) of a parameter's flattened gradient."""

    parameter: Parameter
    begin: int
    end: int

    @property
    def gradient(self) -> np.ndarray:
        """The piece's gradient: a writable view, one axis."""
        return self.parameter.blob.diff.reshape(-1)[self.begin : self.end]

    @property
    def weights(self) -> np.ndarray:
        """The piece's weights: a writable view, one axis."""
        return self.parameter.blob.data.reshape(-1)[self.begin : self.end]

    @property
    def nbytes(self) -> int:
        """The size of the gradient."""
        return (self.end - self.begin) * self.parameter.blob.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Bucket:
    """Pieces that travel together, once the gradients of all their parameters are ready.

    ``number`` is the place in the order in which backward makes gradients, the same on all ranks.
    Of the buckets that wait for the wire, the one with the lowest ``priority`` goes first.
    """

    slices: tuple[Slice, ...]
    number: int
    priority: int = 0

    @property
    def nbytes(self) -> int:
        """The size of all slices."""
        return sum(piece.nbytes for piece in self.slices)

    @property
    def name(self) -> str:
        """The parameters' names, for messages."""
        return ", ".join(piece.parameter.key for piece in self.slices)


@dataclass(frozen=True)
class Cost:
    """The work of one rank for an exchange.

    ``messages`` follow one after the other and carry ``nbytes`` out (and as many in).  ``flops``
    come after them; backward computes ``saved_flops`` less.  ``copied``
    counts the bytes that it reads and writes in its host's memory.  Messages from GPU to GPU have a
    ``link`` of their own.
    """

    messages: float
    nbytes: float
    flops: float = 0.0
    saved_flops: float = 0.0
    copied: float = 0.0
    link: Link | None = None

    def latency_seconds(self, cluster: Cluster) -> float:
        """Return for how long messages are under way besides the time that their bytes take."""
        return self.messages * (self.link or link_of(cluster)).latency

    def wire_seconds(self, cluster: Cluster) -> float:
        """Return the time of all bytes that are sent, to and from the host's memory included."""
        staging = 0.0 if self.link else cluster.staging_seconds
        return self.nbytes * (1 / (self.link or link_of(cluster)).bandwidth + staging)

    def seconds(self, cluster: Cluster) -> float:
        """Return the time that this takes on a cluster where nothing else goes on."""
        seconds = self.latency_seconds(cluster) + self.wire_seconds(cluster)
        if self.flops or self.saved_flops:
            seconds += (self.flops - self.saved_flops) / product_rate(cluster)
        if self.copied:
            seconds += self.copied / copy_rate(cluster)
        return seconds


class Exchange(abc.ABC):
    """One way of combining parameters across the ranks of ``cluster``.

    A subclass declares what it ``moves``, whether it runs ``during_backward`` (else it waits for
    the end of it), whether buckets must start ``in_order``, as MPI's collective operations must
    (else the urgent ones may overtake), whether it ``computes`` or ``copies`` between ranks of a
    host (else nobody measures how fast), whether it is a choice of ``--exchange=auto``, whether it
    ``compresses`` what travels (``--wire``), whether it works ``on_device``, where GPUs have made
    the gradients, and whether it is ``deterministic``: the same bits on all ranks and in all runs;
    ``needs_all_ranks`` says why it cannot go on when a rank is lost, empty if it can.  It defines
    ``supports``, ``cost`` and ``steps``.
    """

    type: ClassVar[str]
    moves: ClassVar[Moves] = Moves.GRADIENT
    during_backward: ClassVar[bool] = True
    in_order: ClassVar[bool] = False
    computes: ClassVar[bool] = False
    copies: ClassVar[bool] = False
    automatic: ClassVar[bool] = True
    compresses: ClassVar[bool] = False
    on_device: ClassVar[bool] = False
    deterministic: ClassVar[bool] = True
    needs_all_ranks: ClassVar[str] = ""

    def __init__(self, cluster: Cluster, settings: ExchangeSettings):
        self.cluster = cluster
        self.settings = settings

    def negotiate(self, parameters: Sequence[Parameter]) -> None:  # noqa: B027 (optional)
        """Find out, with all ranks, what ``supports`` and ``cost`` must know of them."""

    def measured(self) -> str:
        """Return what was measured for this exchange alone, in words."""
        return ""

    def supports(self, parameter: Parameter, cluster: Cluster) -> str | None:
        """Return None, or the reason why this exchange cannot combine ``parameter``."""
        return None

    def may_help(self, cluster: Cluster) -> bool:
        """Tell whether "auto" is to consider it on ``cluster``."""
        return True

    def facts(self, parameter: Parameter) -> str:
        """Return what must be the same on all ranks, in words; empty if the shape is enough."""
        return ""

    @abc.abstractmethod
    def cost(self, slices: Sequence[Slice], cluster: Cluster) -> Cost:
        """Return what it takes to combine slices that travel together."""

    def seconds(self, parameter: Parameter, cluster: Cluster) -> float:
        """Return the seconds predicted for a parameter, beside what it shares with others."""
        return self.cost([Slice(parameter, 0, parameter.blob.count)], cluster).seconds(cluster)

    def group(self, parameters: Sequence[Parameter]) -> list[list[Slice]]:
        """Divide parameters, which come in the order of backward, into what travels together."""
        return [[Slice(parameter, 0, parameter.blob.count)] for parameter in parameters]

    def prepare(self, buckets: Sequence[Bucket]) -> None:  # noqa: B027 (optional)
        """Get ready for a run with these buckets."""

    def submit(self, bucket: Bucket, order: int) -> Handle:
        """Start to combine a bucket across ranks; ``order`` counts all buckets of a run."""
        cluster = cast("MPICluster", self.cluster)
        return cluster.communication.submit(
            self.task(bucket),
            f"exchange {self.type} of {bucket.name}",
            order=order,
            nbytes=self.bytes_under_way(bucket),
            priority=bucket.priority,
        )

    def task(self, bucket: Bucket) -> Task:
        """Do the ``steps`` once the gradients, if a GPU made them, are on the host."""
        blobs = [piece.parameter.blob for piece in bucket.slices]
        yield from wait_for(lambda: all(b.diff_is_staged() for b in blobs), self.cluster.rank)
        yield from self.steps(bucket)

    def bytes_under_way(self, bucket: Bucket) -> int:
        """Return how much is on its way while a bucket travels."""
        return bucket.nbytes

    @abc.abstractmethod
    def steps(self, bucket: Bucket) -> Task:
        """Combine a bucket, in the communication thread: yield the messages to wait for."""

    def complete(self, bucket: Bucket) -> None:  # noqa: B027 (optional)
        """Do the work after the messages' arrival, in the thread that waits for them."""

    def close(self) -> None:  # noqa: B027 (optional)
        """Forget the run."""


class FactorExchange(Exchange):
    """An exchange that moves a gradient's factors, one weight's to a bucket."""

    moves = Moves.FACTORS

    @abc.abstractmethod
    def factors(self, bucket: Bucket) -> Factors:
        """Return all ranks' factors, on the host, for another to do what ``complete`` does."""


class UpdateExchange(Exchange):
    """An exchange that updates parameters itself, in the solver's place.

    Once a bucket's messages have arrived, its weights are current.  Of its parameters, the solver
    holds no history.  All methods but ``begin`` are collective.
    """

    moves = Moves.UPDATE

    @abc.abstractmethod
    def take_over(self, updater: Updater[Parameter]) -> None:
        """Take rank 0's weights, and the history that its updater holds; this then forgets it."""

    @abc.abstractmethod
    def begin(self, iteration: int, rate: float) -> None:
        """Take note of the iteration whose gradients come next, and of its learning rate."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Give all ranks the weights that all updates so far make, the same everywhere."""

    @abc.abstractmethod
    def collect_history(self, updater: Updater[Parameter]) -> dict[tuple[int, int], np.ndarray]:
        """Return, on rank 0, the history of its parameters by slot and index in the updater."""


class Message(NamedTuple):
    """An array that goes to ``peer``, or comes from it."""

    array: np.ndarray
    peer: int
    tag: int


def start_messages(communicator: Any, receives: list[Message], sends: list[Message]) -> Step:
    """Start messages that are not empty, receives first."""
    requests, ranks = [], []
    nbytes = sum(message.array.nbytes for message in sends)
    for start, messages in ((communicator.Irecv, receives), (communicator.Isend, sends)):
        for array, peer, tag in messages:
            if array.size:
                requests.append(start(array, peer, tag))
                ranks.append(peer)
    return Step(requests, tuple(ranks), nbytes)


def mean_in_rank_order(parts: Sequence[np.ndarray], ranks: int, out: np.ndarray) -> None:
    """Set ``out`` to the sum of ``parts`` in their order, divided by ``ranks``.

    Only this function and the next one divide a gradient by the number of ranks.  The fixed order
    makes the result the same, bit for bit, on any rank and for any order of arrival.
    ``out`` may be one of the parts; the contents of the first part are lost.
    """
    first = parts[0]
    sum_in_rank_order(parts, first)
    np.divide(first, ranks, out=out)


def sum_in_rank_order(parts: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Set ``out`` to the sum of ``parts`` in their order; it may be the first of them."""
    first, *others = parts
    if first is not out:
        np.copyto(out, first)
    for part in others:
        np.add(out, part, out=out)


def mean_of_products(u: np.ndarray, v: np.ndarray, ranks: int, out: np.ndarray) -> None:
    """Set ``out`` (M, N) to uᵀ·v divided by ``ranks``, for u (P·K, M) and v (P·K, N).

    One product over the rows of all ranks, in their order: the same bits on all ranks that have the
    same vector instructions, and nothing is rounded that one rank with all rows would not round.
    """
    from pycaffe_dist.kernels.gemm import gemm

    gemm(u, v, out, trans_a=True, alpha=1.0 / ranks)


_exchanges: Registry[Exchange] = Registry("exchange", "pycaffe_dist.exchange")
register = _exchanges.register


def exchange_class(name: str) -> type[Exchange]:
    """Return the exchange class of a name; raises UsageError with the nearest known one."""
    return _exchanges.get(name, also=(AUTO,))


def exchange_names() -> list[str]:
    """Return the names of all exchanges, sorted."""
    return _exchanges.names()


def candidates(name: str, wire: Wire = Wire.FLOAT32) -> list[type[Exchange]]:
    """Return the exchanges among which a run chooses that was asked for ``name``, or for "auto".

    The one that was asked for comes first; the others are for parameters that it cannot combine.
    Raises UsageError when there is no such exchange, or when it knows no other ``wire`` than
    float32.
    """

    def suits(kind: type[Exchange]) -> bool:
        return kind.compresses or wire is Wire.FLOAT32

    if name == AUTO:
        kinds = [exchange_class(known) for known in exchange_names()]
        return [kind for kind in kinds if kind.automatic and suits(kind)]
    if not suits(exchange_class(name)):
        known = ", ".join(other for other in exchange_names() if suits(exchange_class(other)))
        raise UsageError(
            f"--exchange={name} sends float32 only; --wire={wire.value} is for {known}"
        )
    return [exchange_class(choice) for choice in dict.fromkeys((name, FALLBACK))]
