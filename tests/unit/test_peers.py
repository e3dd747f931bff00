"""What joins the ranks' GPUs, told from what every rank says of itself."""

from __future__ import annotations

import pytest

from pycaffe_dist.runtime.peers import MPI, NCCL, refusals


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
