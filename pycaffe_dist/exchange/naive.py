"""The executable specification: after backward, one allreduce per parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from pycaffe_dist.comm.tasks import Step, Task
from pycaffe_dist.exchange.base import (
    Bucket,
    Cost,
    Exchange,
    Slice,
    mean_in_rank_order,
    register,
)

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.comm.mpi import MPICluster


@register("naive")
class Naive(Exchange):
    """MPI's own allreduce of every parameter, once backward has ended."""

    during_backward = False
    in_order = True
    automatic = False
    deterministic = False  # MPI does not promise it of its own sums

    def cost(self, slices: Sequence[Slice], cluster: Cluster) -> Cost:
        """Return the cost of a ring allreduce."""
        steps = 2 * (cluster.size - 1)
        return Cost(steps, steps * sum(piece.nbytes for piece in slices) / cluster.size)

    def steps(self, bucket: Bucket) -> Task:
        """Sum in place over ranks, then divide."""
        from mpi4py import MPI

        communicator = cast("MPICluster", self.cluster).exchange_communicator
        for piece in bucket.slices:
            gradient = piece.gradient
            request = communicator.Iallreduce(MPI.IN_PLACE, gradient)
            yield Step([request], nbytes=self.cost([piece], self.cluster).nbytes)
            mean_in_rank_order([gradient], self.cluster.size, gradient)
