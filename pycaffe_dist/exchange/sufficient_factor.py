"""Inner-product weights by their gradient's two factors, which are far smaller than the gradient.

The gradient of M×N weights over K samples is uᵀ·v with u (K, M) and v (K, N): K·(M+N) numbers
instead of M·N.  They are the sufficient factors of Xie et al., "Lighter-communication distributed
machine learning via sufficient factor broadcasting" (UAI 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from pycaffe_dist.comm.arrival import Copies, wait_for
from pycaffe_dist.comm.tasks import Task
from pycaffe_dist.config import ExchangeSettings
from pycaffe_dist.device import from_numpy, use
from pycaffe_dist.errors import ClusterError
from pycaffe_dist.exchange.base import (
    Bucket,
    Cost,
    FactorExchange,
    Message,
    Slice,
    mean_of_products,
    register,
    start_messages,
)
from pycaffe_dist.exchange.wire_format import WireFormat, wire_format
from pycaffe_dist.solvers.engine import Factors

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.comm.mpi import MPICluster
    from pycaffe_dist.comm.tasks import Handle
    from pycaffe_dist.net.parameter import Parameter


class _Rows:
    """One parameter's factors of all ranks: u (P·K, M) and v (P·K, N), rank by rank."""

    def __init__(self, parameter: Parameter, ranks: int):
        self.samples = parameter.factor_rows
        blob, (u, v) = parameter.blob, parameter.shape
        self.u, self.v = (
            blob.device.host_array((ranks * self.samples, columns), blob.dtype)
            for columns in (u, v)
        )
        self.copies = Copies(blob.device)  # of this rank's factors, in this iteration

    def of(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return one rank's factors."""
        rows = slice(rank * self.samples, (rank + 1) * self.samples)
        return self.u[rows], self.v[rows]


@register("sufficient_factor")
class SufficientFactor(FactorExchange):
    """Every rank sends its factors to all, and rebuilds the mean gradient by one product.

    The layer leaves its own product out.  The rebuilding is done by the thread that waits for the
    gradient, because that one has the rank's cores; the communication thread only moves messages.
    The same bits result on all ranks and in all runs, where the vector instructions are the same.
    """

    computes = True
    compresses = True

    def __init__(self, cluster: Cluster, settings: ExchangeSettings):
        super().__init__(cluster, settings)
        self._rows: dict[Bucket, _Rows] = {}

    def supports(self, parameter: Parameter, cluster: Cluster) -> str | None:
        """Refuse gradients other than one product over the samples of one pass of one layer."""
        if not parameter.factor_rows or len(parameter.shape) != 2:
            return "its gradient has no factors"
        if len(parameter.sharers) > 1:
            return f"{len(parameter.sharers)} layers share it, each with factors of its own"
        if self.settings.passes > 1:
            return f"factors of {self.settings.passes} passes (iter_size) do not add up"
        return None

    def facts(self, parameter: Parameter) -> str:
        """Return the batch, and what decides how sums are rounded."""
        from pycaffe_dist.kernels.jit.codegen.target import target

        unit = target()
        return f"{parameter.factor_rows} samples, {unit.level if unit else 'no'} instructions"

    def cost(self, slices: Sequence[Slice], cluster: Cluster) -> Cost:
        """Return the cost of one round in which a rank sends its factors to every other."""
        others = cluster.size - 1
        nbytes, flops = 0.0, 0
        for piece in slices:
            samples, shape = piece.parameter.factor_rows, piece.parameter.shape
            dtype = piece.parameter.blob.dtype
            nbytes += self._wire(dtype).nbytes(samples * sum(shape), dtype.itemsize)
            flops += 2 * samples * piece.parameter.blob.count
        return Cost(1, nbytes * others, flops * cluster.size, flops)

    def _wire(self, dtype: np.dtype) -> WireFormat:
        """Return the form in which factors travel.

        What rounding loses of them is lost: it belongs to this iteration's other factor, so that
        adding it to the next iteration's would be wrong.
        """
        return wire_format(self.settings.wire, dtype)

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Allocate the rows."""
        self.close()
        for bucket in buckets:
            (piece,) = bucket.slices
            self._rows[bucket] = _Rows(piece.parameter, self.cluster.size)

    def submit(self, bucket: Bucket, order: int) -> Handle:
        """Copy the layer's factors to this rank's rows, and start to send them."""
        parameter = bucket.slices[0].parameter
        factors = parameter.factors()
        if factors is None:
            raise ClusterError(f"{parameter.key}: its factors are asked for before any backward")
        rows = self._rows[bucket]
        rows.copies = Copies(parameter.blob.device)
        for mine, factor in zip(rows.of(self.cluster.rank), factors):
            if mine.shape != factor.shape:
                raise ClusterError(
                    f"{parameter.key}: the exchange plan is for factors of {mine.shape[0]} "
                    f"samples, but backward had {factor.shape[0]}; batches that change need "
                    "--exchange=allreduce"
                )
            rows.copies.start(factor, mine)
        return super().submit(bucket, order)

    def bytes_under_way(self, bucket: Bucket) -> int:
        """Return the size of what all ranks send to this one."""
        rows = self._rows[bucket]
        return rows.u.nbytes + rows.v.nbytes

    def steps(self, bucket: Bucket) -> Task:
        """Receive straight into the rows, unless what travels is rounded."""
        rank, ranks = self.cluster.rank, self.cluster.size
        rows = self._rows[bucket]
        wire = self._wire(rows.u.dtype)
        yield from wait_for(rows.copies.arrived, rank)
        # Each rank begins with the next one, so that no rank gets all messages at once.
        peers = [(rank + distance) % ranks for distance in range(1, ranks)]
        tags = 2 * bucket.number, 2 * bucket.number + 1
        # All ranks are to rebuild the gradient from the same numbers, so ours are rounded, too.
        ours = [wire.settle(array.reshape(-1), None) for array in rows.of(rank)]
        theirs = [
            (array.reshape(-1), peer, tag)
            for peer in reversed(peers)
            for array, tag in zip(rows.of(peer), tags)
        ]
        rooms = [wire.room(array) for array, _, _ in theirs]
        yield start_messages(
            cast("MPICluster", self.cluster).exchange_communicator,
            [Message(room, peer, tag) for room, (_, peer, tag) in zip(rooms, theirs)],
            [Message(array, peer, tag) for peer in peers for array, tag in zip(ours, tags)],
        )
        for room, (array, _, _) in zip(rooms, theirs):
            wire.unpack(room, array)

    def complete(self, bucket: Bucket) -> None:
        """Rebuild the mean gradient."""
        parameter = bucket.slices[0].parameter
        rows = self._rows[bucket]
        if parameter.blob.count:
            with use(parameter.blob.device):
                factors = from_numpy(rows.u), from_numpy(rows.v)
                mean_of_products(*factors, self.cluster.size, parameter.blob.diff)

    def factors(self, bucket: Bucket) -> Factors:
        """Return the factors of all ranks."""
        rows = self._rows[bucket]
        return Factors(rows.u, rows.v, self.cluster.size)

    def close(self) -> None:
        """Forget the factors."""
        self._rows.clear()
