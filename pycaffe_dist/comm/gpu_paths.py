"""The paths between the ranks' GPUs: NCCL, an MPI that accesses their memory, or neither."""

from __future__ import annotations

import json
import pickle
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist.comm.measured import Link
from pycaffe_dist.comm.transports import cuda_aware
from pycaffe_dist.device import Device, use
from pycaffe_dist.errors import DeviceError

if TYPE_CHECKING:
    from pycaffe_dist.comm.mpi import MPICluster

NCCL = "nccl"
MPI = "cuda_mpi"
_NAMES = {NCCL: "NCCL", MPI: "CUDA-aware MPI"}
# The bytes of a message that measures a path, and the number of messages.
_BYTES = 4 << 20
_REPETITIONS = 4


class Peers:
    """The GPUs of all ranks of ``cluster``; ``device`` is this rank's GPU, if it has one.

    ``refusals`` says why a path, NCCL or MPI, cannot be taken; the same on all ranks.
    ``staging_seconds`` are for a byte to the host's memory and back; ``links`` are the measured
    paths.  All ranks make theirs together, and call the same methods in the
    same order from their main threads.
    """

    def __init__(self, cluster: MPICluster, device: Device):
        self.cluster = cluster
        self._gpu: Any = device
        self._communicator: Any = None
        self.links: dict[str, Link] = {}
        of_all = cluster.gather_bytes(json.dumps(_facts(cluster.host, device)).encode())
        self.refusals = refusals([json.loads(data) for data in of_all])
        if NCCL not in self.refusals:
            self._join()
        self.staging_seconds = 0.0
        if all(json.loads(data)["gpu"] for data in of_all):
            self.staging_seconds = float(cluster.max(np.array(self._stage() / _BYTES)))

    @property
    def device(self) -> Device:
        """This rank's device."""
        return self._gpu

    def sum(self, array: Any) -> None:
        """Enqueue NCCL's sum of an array over ranks, in place, on the current stream.

        The ranks sum the same arrays in the same order.
        """
        nccl = self._gpu.nccl()
        address = array.data.ptr
        kind = getattr(nccl, f"NCCL_{array.dtype.name.upper()}")
        stream = self._gpu.cuda_stream() or 0
        if array.size:
            self._communicator.allReduce(
                *(address, address, array.size, kind, nccl.NCCL_SUM, stream)
            )

    def check(self) -> None:
        """Raise DeviceError for an error in a running sum."""
        try:
            self._communicator.check_async_error()
        except self._gpu.nccl().NcclError as error:
            raise DeviceError(f"NCCL: {error}") from None

    @property
    def paths(self) -> list[str]:
        """The usable paths, the same on all ranks."""
        return [path for path in _NAMES if path not in self.refusals]

    def describe(self) -> str:
        """Return, in words, how gradients get from GPU to GPU."""
        ways = [_NAMES[path] for path in self.paths] + ["MPI and the host's pinned memory"]
        closed = [f"no {_NAMES[path]}: {reason}" for path, reason in self.refusals.items()]
        return " or ".join(ways) + (f" ({'; '.join(closed)})" if closed else "")

    def close(self) -> None:
        """Leave NCCL's communicator."""
        if self._communicator is not None:
            with use(self._gpu):
                self._communicator.destroy()
            self._communicator = None

    def _join(self) -> None:
        """Make a communicator of NCCL, or note NCCL's reason for refusing."""
        cluster, reason = self.cluster, ""
        nccl = self._gpu.nccl()
        identity = nccl.get_unique_id() if cluster.rank == 0 else None
        identity = pickle.loads(cluster.broadcast_bytes(pickle.dumps(identity)))
        try:
            with use(self._gpu):
                self._communicator = nccl.NcclCommunicator(cluster.size, identity, cluster.rank)
        except nccl.NcclError as error:
            reason = str(error)
        for rank, data in enumerate(cluster.gather_bytes(reason.encode())):
            if data:
                self.refusals[NCCL] = f"rank {rank}: {data.decode()}"
        if NCCL in self.refusals:
            self.close()

    def _stage(self) -> float:
        """Time a copy to the host's pinned memory and back, in seconds."""
        best = float("inf")
        with use(self._gpu), self._gpu.stream("exchange"):
            array = self._gpu.zeros(_BYTES, np.uint8)
            pinned = self._gpu.host_zeros(_BYTES, np.uint8)
            for _ in range(1 + _REPETITIONS):
                self._gpu.synchronize_stream()
                started = time.perf_counter()
                self._gpu.copy_to_host(array, pinned)
                self._gpu.copy_to_device(pinned, array)
                self._gpu.synchronize_stream()
                best = min(best, time.perf_counter() - started)
        return best


def _facts(host: str, device: Any) -> dict[str, Any]:
    """Return the facts about this rank's GPU that other ranks need."""
    if not device.is_gpu:
        return {"host": host, "gpu": "", "nccl": "", "mpi": ""}
    facts = {
        "host": host,
        "gpu": device.identity,
        "nccl": "",
        "mpi": device.mpi_refusal(cuda_aware()),
    }
    try:
        device.nccl()
    except DeviceError as error:
        facts["nccl"] = str(error)
    return facts


def refusals(of_all: list[dict[str, Any]]) -> dict[str, str]:
    """Return why paths cannot be used, from the facts of all ranks.

    A rank's facts are its ``host``, its ``gpu`` (empty without one), and the reasons against
    ``nccl`` and ``mpi`` (empty if they are usable).
    """
    without = [rank for rank, facts in enumerate(of_all) if not facts["gpu"]]
    if without:
        who = "the ranks compute" if len(without) == len(of_all) else f"rank {without[0]} computes"
        return dict.fromkeys((NCCL, MPI), f"it needs a GPU on every rank, and {who} on the CPU")
    found = {}
    places = defaultdict(list)
    for rank, facts in enumerate(of_all):
        places[facts["host"], facts["gpu"]].append(rank)
    for (host, _), ranks in places.items():
        if len(ranks) > 1:
            shown = " and ".join(map(str, ranks))
            found[NCCL] = f"ranks {shown} share a GPU of {host}, and each needs one of its own"
            break
    for path in (NCCL, MPI):
        for rank, facts in enumerate(of_all):
            if facts[path.removeprefix("cuda_")]:
                reason = facts[path.removeprefix("cuda_")]
                found.setdefault(path, f"{reason} (rank {rank})")
    return found
