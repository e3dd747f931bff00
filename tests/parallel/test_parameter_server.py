"""The parameter server equals allreduce with an update on every rank, for every solver."""

from __future__ import annotations

import re

import numpy as np
import pytest
from exchange_cases import MANY, MOST, cases

from pycaffe_dist.solvers import method_types


def run(kept_mpirun, folder, ranks: int, servers: int) -> list[dict]:
    """Return every training rank's results by name."""
    finished = kept_mpirun(ranks, "serving.py", folder, servers, timeout=120)
    assert finished.status == 0, finished.output
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(ranks - servers)]


@pytest.mark.parametrize(
    "ranks, servers",
    [
        *[(1, 0), (2, 0), (2, 1), (4, 1)],
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [(3, 0), (4, 0), (5, 3), (MOST, 0)]
        ),
    ],
)
def test_synchronous_training_gives_the_bits_of_allreduce(kept_mpirun, tmp_path, ranks, servers):
    """Weights on all ranks, and the history on rank 0; it is not zero at the start."""
    for rank, found in enumerate(run(kept_mpirun, tmp_path, ranks, servers)):
        ours = {name: array for name, array in found.items() if name.startswith("ours/")}
        assert {name.split("/")[1] for name in ours} == set(cases(ranks - servers))
        assert ranks >= MANY or {name.split("/")[2] for name in ours} == set(method_types())
        assert any("history" in name for name in ours) == (rank == 0)
        for name, array in ours.items():
            expected = found[name.replace("ours", "theirs", 1)]
            np.testing.assert_array_equal(array, expected, err_msg=name)


@pytest.mark.parametrize("servers", [0, 1])
def test_ranks_run_ahead_up_to_the_staleness_and_name_the_ranks_they_wait_for(
    kept_mpirun, tmp_path, servers
):
    finished = kept_mpirun(3 + servers, "lagging.py", tmp_path, servers, timeout=120)
    assert finished.status == 0, finished.output
    said = re.findall(r"rank [02] has waited \d+ s for rank 1 \(3 clocks behind\)", finished.output)
    assert said, finished.output
