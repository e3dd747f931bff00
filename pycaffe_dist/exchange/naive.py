"""The executable specification: after backward, one allreduce per parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycaffe_dist.exchange.base import Exchange, Shipment, mean_in_rank_order, register
from pycaffe_dist.runtime.communication import Step, Task

if TYPE_CHECKING:
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.runtime.cluster import Cluster


@register("naive")
class Naive(Exchange):
    """MPI's own allreduce of every parameter, once backward has ended."""

    during_backward = False

    def cost(self, parameter: Parameter, cluster: Cluster) -> float:
        """Return the time of a ring allreduce."""
        steps = 2 * (cluster.size - 1)
        nbytes = parameter.blob.count * parameter.blob.dtype.itemsize
        return cluster.link().seconds(steps, steps * nbytes / cluster.size)

    def steps(self, shipment: Shipment) -> Task:
        """Sum in place over ranks, then divide."""
        from mpi4py import MPI

        for piece in shipment.pieces:
            gradient = piece.gradient
            yield Step([self.cluster.exchange_communicator.Iallreduce(MPI.IN_PLACE, gradient)])
            mean_in_rank_order([gradient], self.cluster.size, gradient)
