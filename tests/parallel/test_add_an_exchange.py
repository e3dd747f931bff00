"""The example in docs/add_an_exchange.md is found, and agrees with ``naive``."""

from __future__ import annotations

import pytest
from guides import write_code


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_guides_exchange_agrees_with_the_specification(mpirun, tmp_path, ranks):
    (path,) = write_code("add_an_exchange.md", tmp_path)
    finished = mpirun(ranks, "added.py", (tmp_path / path).parent, "one_round", "naive")
    assert finished.status == 0, finished.output
    assert finished.output.count("agree\n") == ranks
