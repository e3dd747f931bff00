"""The parameter server does what allreduce and an update on every rank do, with every solver."""

from __future__ import annotations

import numpy as np
import pytest
from exchange_cases import CASES

from pycaffe_dist.solvers import method_types


def run(mpirun, folder, ranks: int, servers: int = 0, staleness: int = 0) -> list[dict]:
    """Return what every training rank has found, by name."""
    finished = mpirun(ranks, "serving.py", folder, servers, staleness, timeout=120)
    assert finished.status == 0, finished.output
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(ranks - servers)]


@pytest.mark.parametrize(
    "ranks, servers", [(1, 0), (2, 0), (3, 0), (4, 0), (16, 0), (2, 1), (4, 1), (5, 3)]
)
def test_synchronous_training_gives_the_bits_of_allreduce(mpirun, tmp_path, ranks, servers):
    """Weights on all ranks, and the history on rank 0; some is there when they start."""
    for rank, found in enumerate(run(mpirun, tmp_path, ranks, servers)):
        ours = {name: array for name, array in found.items() if name.startswith("ours/")}
        assert {name.split("/")[1] for name in ours} == set(CASES)
        assert {name.split("/")[2] for name in ours} == set(method_types())
        assert any("history" in name for name in ours) == (rank == 0)
        for name, array in ours.items():
            expected = found[name.replace("ours", "theirs", 1)]
            np.testing.assert_array_equal(array, expected, err_msg=name)
