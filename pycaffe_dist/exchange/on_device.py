"""The mean gradient from GPU to GPU: by NCCL, or by an MPI that knows their memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from pycaffe_dist.calibration.gpu_link import gpu_link
from pycaffe_dist.comm.arrival import in_stream, wait_for
from pycaffe_dist.comm.gpu_paths import MPI, NCCL, Peers
from pycaffe_dist.comm.tasks import Step, Task
from pycaffe_dist.config import ExchangeSettings
from pycaffe_dist.device import use
from pycaffe_dist.exchange.allreduce import Allreduce, DirectMean
from pycaffe_dist.exchange.base import Bucket, Cost, Slice, mean_in_rank_order, register

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.comm.measured import Link
    from pycaffe_dist.comm.mpi import MPICluster
    from pycaffe_dist.net.parameter import Parameter

_DTYPES = ("float16", "float32", "float64")


class DeviceExchange(Allreduce):
    """Works where GPUs have made the gradients, on ``stream``, while they go on with backward.

    Fuses and slices as ``allreduce`` does.
    """

    on_device = True
    compresses = False
    stream: ClassVar[str]
    path: ClassVar[str]

    def __init__(self, cluster: Cluster, settings: ExchangeSettings):
        super().__init__(cluster, settings)
        self._gpu: Any = None
        self._peers: Peers | None = None
        self._refusal = "it must measure what joins the ranks' GPUs"
        self._link: Link | None = None

    def negotiate(self, parameters: Sequence[Parameter]) -> None:
        """Find out what joins the GPUs, and how fast it is."""
        if not parameters:
            return
        self._gpu = parameters[0].blob.device
        self._peers = cast("MPICluster", self.cluster).peers(self._gpu)
        self._refusal = self._peers.refusals.get(self.path, "")
        if not self._refusal:
            self._link = gpu_link(self._peers, self.path)

    def measured(self) -> str:
        """Return what the messages' path was measured to take."""
        return "" if self._link is None else f"{self.type}: {self._link}"

    def supports(self, parameter: Parameter, cluster: Cluster) -> str | None:
        """Refuse ranks whose GPUs nothing joins, and numbers that it does not know."""
        dtype = parameter.blob.dtype.name
        if not self._refusal and dtype not in _DTYPES:
            return f"it has no {dtype}"
        return self._refusal or None

    def may_help(self, cluster: Cluster) -> bool:
        """Tell whether something joins the GPUs."""
        return not self._refusal

    def cost(self, slices: Sequence[Slice], cluster: Cluster) -> Cost:
        """Return the cost of two rounds, over the GPUs' own link."""
        return replace(super().cost(slices, cluster), link=self._link)

    def task(self, bucket: Bucket) -> Task:
        """Return the steps, on a stream that waits for what backward has enqueued until now."""
        with use(self._gpu):
            made = self._gpu.record()
        return in_stream(self._gpu, self.stream, self._steps_after(made, bucket))

    def _steps_after(self, made: Any, bucket: Bucket) -> Task:
        self._gpu.wait(made)
        yield from self.steps(bucket)
        yield from self.computed()

    def computed(self) -> Task:
        """Wait until the stream has come as far as it has been told to."""
        event, gpu = self._gpu.record(), self._gpu
        yield from wait_for(lambda: gpu.is_reached(event), self.cluster.rank)


@register(MPI)
class CudaMPI(DeviceExchange):
    """What ``allreduce`` does, with messages that MPI takes from the GPUs' memory."""

    path = MPI
    stream = "exchange"

    def direct_mean(self, communicator: Any) -> DirectMean:
        """Return the mean's messages, which start when the GPU has computed the gradients."""
        return DirectMean(communicator, self.computed)


@register(NCCL)
class NCCLSum(DeviceExchange):
    """NCCL's allreduce, which the GPUs do on a stream of its own."""

    path = NCCL
    stream = "collective"
    in_order = True
    deterministic = False  # NCCL does not promise it

    def __init__(self, cluster: Cluster, settings: ExchangeSettings):
        super().__init__(cluster, settings)
        self._turn: dict[Bucket, int] = {}
        self._begun = 0

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Number the buckets: ranks must begin them in the same order."""
        self._turn = {bucket: turn for turn, bucket in enumerate(buckets)}
        self._begun = 0

    def steps(self, bucket: Bucket) -> Task:
        """Combine the slices when it is their turn."""
        turn = self._turn[bucket]
        yield from wait_for(
            lambda: self._begun % len(self._turn) == turn,
            self.cluster.rank,
        )
        yield from super().steps(bucket)

    def mean(self, values: np.ndarray, bucket: Bucket) -> Task:
        """Enqueue the sum over ranks of ``values`` (one axis), and its division."""
        cast("Peers", self._peers).sum(values)
        self._begun += 1
        mean_in_rank_order([values], self.cluster.size, values)
        yield from ()

    def computed(self) -> Task:
        """Wait for the stream, and thereby for the other ranks."""
        event, gpu, peers = self._gpu.record(), self._gpu, cast("Peers", self._peers)
        others = [rank for rank in range(self.cluster.size) if rank != self.cluster.rank]

        def late() -> Sequence[int]:
            peers.check()
            return () if gpu.is_reached(event) else others

        yield Step([], late=late)
