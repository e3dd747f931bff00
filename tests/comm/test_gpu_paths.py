"""The paths between the ranks' GPUs, chosen from what every rank says of itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pycaffe_dist.comm.gpu_paths import MPI, NCCL, refusals
from pycaffe_dist.comm.measured import Link, Measured
from pycaffe_dist.exchange.base import Cost


def rank(gpu: str, host: str = "a", nccl: str = "", mpi: str = "") -> dict[str, str]:
    return {"host": host, "gpu": gpu, "nccl": nccl, "mpi": mpi}


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        ([rank("0"), rank("1")], {}),
        ([rank("0"), rank("0", "b")], {}),
        ([rank(""), rank("")], {NCCL: "the ranks compute on the CPU", MPI: "it needs a GPU on"}),
        ([rank("0"), rank("")], {NCCL: "rank 1 computes on the CPU", MPI: "rank 1 computes"}),
        ([rank("0"), rank("1"), rank("0")], {NCCL: "ranks 0 and 2 share a GPU of a"}),
        (
            [rank("0"), rank("1", nccl="CuPy finds no NCCL", mpi="MPI is not CUDA-aware")],
            {NCCL: "CuPy finds no NCCL (rank 1)", MPI: "MPI is not CUDA-aware (rank 1)"},
        ),
    ],
)
def test_paths_are_refused_with_a_reason(ranks, found):
    refused = refusals(ranks)
    assert set(refused) == set(found)
    assert all(reason in refused[path] for path, reason in found.items())


def test_gpus_have_their_own_link_and_paths_over_the_host_add_copies():
    cluster = SimpleNamespace(measured=Measured(Link(1e-5, 1e9)), staging_seconds=2e-9)
    assert Cost(2, 1e6).seconds(cluster) == pytest.approx(2e-5 + 1e-3 + 2e-3)
    assert Cost(2, 1e6, link=Link(1e-6, 1e10)).seconds(cluster) == pytest.approx(2e-6 + 1e-4)
