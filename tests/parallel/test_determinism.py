"""The same seed, ranks and threads give the same bits, with every solver method."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("ranks", [1, pytest.param(4, marks=pytest.mark.long)])
def test_every_method_gives_the_same_bits_again(kept_mpirun, ranks):
    finished = kept_mpirun(ranks, "determined.py", timeout=240)
    assert finished.status == 0, finished.output
    assert finished.output.count("same") == ranks
