"""What every exchange is: what it moves, for which parameters, at what cost, and how."""

from __future__ import annotations

import abc
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pycaffe_dist.config import ExchangeSettings
from pycaffe_dist.errors import ClusterError, PcaffeError
from pycaffe_dist.registry import Registry

if TYPE_CHECKING:
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.runtime.cluster import Cluster
    from pycaffe_dist.runtime.communication import Handle, Task
    from pycaffe_dist.runtime.mpi import MPICluster


class Moves(enum.Enum):
    """What travels between ranks."""

    GRADIENT = "gradient"  # each rank's gradient goes out, the mean gradient comes back


@dataclass(frozen=True)
class Piece:
    """The elements [begin, end) of a parameter's flattened gradient."""

    parameter: Parameter
    begin: int
    end: int

    @property
    def gradient(self) -> np.ndarray:
        """The piece's gradient: a writable view, one axis."""
        return self.parameter.blob.diff.reshape(-1)[self.begin : self.end]

    @property
    def nbytes(self) -> int:
        """The size of the gradient."""
        return (self.end - self.begin) * self.parameter.blob.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Shipment:
    """Pieces that travel together, once the gradients of all their parameters are ready.

    ``number`` is the place in the order in which backward makes gradients, the same on all ranks.
    """

    pieces: tuple[Piece, ...]
    number: int

    @property
    def nbytes(self) -> int:
        """The size of all pieces."""
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def name(self) -> str:
        """The parameters' names, for messages."""
        return ", ".join(piece.parameter.key for piece in self.pieces)


class Exchange(abc.ABC):
    """One way of combining parameters across the ranks of ``cluster``.

    A subclass declares what it ``moves`` and whether it runs ``during_backward`` (else it waits for
    the end of it), and defines ``supports``, ``cost`` and ``steps``.
    """

    type: ClassVar[str]
    moves: ClassVar[Moves] = Moves.GRADIENT
    during_backward: ClassVar[bool] = True

    def __init__(self, cluster: MPICluster, settings: ExchangeSettings):
        self.cluster = cluster
        self.settings = settings

    def supports(self, parameter: Parameter, cluster: Cluster) -> str | None:
        """Return None, or the reason why this exchange cannot combine ``parameter``."""
        return None

    @abc.abstractmethod
    def cost(self, parameter: Parameter, cluster: Cluster) -> float:
        """Return the predicted seconds on the wire, for this parameter alone."""

    def group(self, parameters: Sequence[Parameter]) -> list[list[Piece]]:
        """Divide parameters, which come in the order of backward, into what travels together."""
        return [[Piece(parameter, 0, parameter.blob.count)] for parameter in parameters]

    def submit(self, shipment: Shipment, order: int) -> Handle:
        """Start to combine a shipment across ranks; ``order`` counts all shipments of a run."""
        return self.cluster.communication.submit(
            self.steps(shipment),
            f"exchange {self.type} of {shipment.name}",
            order=order,
            nbytes=shipment.nbytes,
        )

    @abc.abstractmethod
    def steps(self, shipment: Shipment) -> Task:
        """Combine a shipment, in the communication thread: yield the messages to wait for."""


def mean_in_rank_order(parts: Sequence[np.ndarray], ranks: int, out: np.ndarray) -> None:
    """Set ``out`` to the sum of ``parts`` in their order, divided by ``ranks``.

    This is the only place where a gradient is divided by the number of ranks.  The fixed order
    makes the result the same, bit for bit, whoever computes it and whenever the parts arrived.
    ``out`` may be one of the parts; the contents of the first part are lost.
    """
    first, *others = parts
    for part in others:
        np.add(first, part, out=first)
    np.divide(first, ranks, out=out)


_exchanges: Registry[Exchange] = Registry("exchange", "pycaffe_dist.exchange")
register = _exchanges.register


def exchange_class(name: str) -> type[Exchange]:
    """Return the exchange class of a name; raises ClusterError with the nearest known one."""
    try:
        return _exchanges.get(name)
    except PcaffeError as error:
        raise ClusterError(str(error)) from None


def exchange_names() -> list[str]:
    """Return the names of all exchanges, sorted."""
    return _exchanges.names()
