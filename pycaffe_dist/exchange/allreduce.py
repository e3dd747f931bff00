"""The mean gradient by direct messages: every rank sums its share, then all collect the shares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np

from pycaffe_dist.config import ExchangeSettings
from pycaffe_dist.exchange.base import (
    Exchange,
    Load,
    Message,
    Piece,
    Shipment,
    mean_in_rank_order,
    register,
    start_messages,
)
from pycaffe_dist.exchange.fusing import fuse_and_slice
from pycaffe_dist.runtime.communication import Task

if TYPE_CHECKING:
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.runtime.cluster import Cluster
    from pycaffe_dist.runtime.mpi import MPICluster


@register("allreduce")
class Allreduce(Exchange):
    """Reduce-scatter and allgather, point to point, in place in the gradients.

    Messages find each other by tags, so that the ranks need not agree on an order.  Sums go in the
    order of ranks: the result has the same bits on all ranks and in all runs.
    """

    def __init__(self, cluster: Cluster, settings: ExchangeSettings):
        super().__init__(cluster, settings)
        self._fused: dict[Shipment, np.ndarray] = {}
        self._spare: list[np.ndarray] = []

    def load(self, pieces: Sequence[Piece], cluster: Cluster) -> Load:
        """Return that of two rounds in which a rank sends a share to every other."""
        nbytes = sum(piece.nbytes for piece in pieces)
        return Load(2, 2 * nbytes * (cluster.size - 1) / cluster.size)

    def cost(self, parameter: Parameter, cluster: Cluster) -> float:
        """Return the seconds predicted for a parameter; small ones share their bucket's rounds."""
        whole = Piece(parameter, 0, parameter.blob.count)
        alone = self.load([whole], cluster)
        share = min(1.0, whole.nbytes / self.settings.bucket_bytes)
        return Load(alone.messages * share, alone.nbytes).seconds(cluster)

    def group(self, parameters: Sequence[Parameter]) -> list[list[Piece]]:
        """Fuse small parameters and slice large ones."""
        return fuse_and_slice(parameters, self.settings.bucket_bytes, self.settings.slice_bytes)

    def steps(self, shipment: Shipment) -> Task:
        """Combine the pieces in place, or through one array that holds them all."""
        if len(shipment.pieces) == 1:
            yield from self._mean(shipment.pieces[0].gradient, shipment.number)
            return
        gradients = [piece.gradient for piece in shipment.pieces]
        fused = self._fused.get(shipment)
        if fused is None:
            count = sum(gradient.size for gradient in gradients)
            fused = self._fused[shipment] = np.empty(count, gradients[0].dtype)
        np.concatenate(gradients, out=fused)
        yield from self._mean(fused, shipment.number)
        begin = 0
        for gradient in gradients:
            gradient[:] = fused[begin : begin + gradient.size]
            begin += gradient.size

    def _mean(self, values: np.ndarray, number: int) -> Task:
        """Replace ``values`` (one axis) by their mean over ranks."""
        rank, ranks = self.cluster.rank, self.cluster.size
        communicator = cast("MPICluster", self.cluster).exchange_communicator
        cuts = [values.size * i // ranks for i in range(ranks + 1)]
        shares = [values[begin:end] for begin, end in pairwise(cuts)]
        mine = shares[rank]
        # Each rank begins with the next one, so that no rank gets all messages at once.
        peers = [(rank + distance) % ranks for distance in range(1, ranks)]

        tag = 2 * number
        scratch = self._take(values.dtype, (ranks - 1) * mine.size)
        theirs = scratch[: (ranks - 1) * mine.size].reshape(ranks - 1, mine.size)
        yield start_messages(
            communicator,
            [Message(theirs[row], peer, tag) for row, peer in enumerate(peers)],
            [Message(shares[peer], peer, tag) for peer in peers],
        )
        by_rank = dict(zip(peers, theirs)) | {rank: mine}
        mean_in_rank_order([by_rank[r] for r in range(ranks)], ranks, mine)
        self._spare.append(scratch)
        yield start_messages(
            communicator,
            [Message(shares[peer], peer, tag + 1) for peer in peers],
            [Message(mine, peer, tag + 1) for peer in peers],
        )

    def _take(self, dtype: np.dtype, count: int) -> np.ndarray:
        """Return a spare array of at least ``count`` elements, or a new one."""
        for index, array in enumerate(self._spare):
            if array.dtype == dtype and array.size >= count:
                return self._spare.pop(index)
        return np.empty(count, dtype)
