"""Every registered exchange against the mean of NumPy and against ``naive``, on 1 to 16 ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from exchange_cases import CASES, EXCHANGES, ITERATIONS, Case

from pycaffe_dist.exchange import AUTO

RANKS = (1, 2, 3, 4, 16)
# MPI does not promise what naive relies on: the same bits everywhere and every time.
SAME_EVERYWHERE = [name for name in EXCHANGES if name != "naive"]
# What auto chooses depends on how fast the links and cores were when the run started.
SAME_EVERY_TIME = [name for name in SAME_EVERYWHERE if name != AUTO]

Results = list[dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def results(mpirun, tmp_path_factory) -> Callable[..., Results]:
    """Return a function that runs all exchanges and returns every rank's arrays by name."""

    @cache
    def run(ranks: int, seed: int = 0) -> Results:
        folder = tmp_path_factory.mktemp(f"on_{ranks}_ranks")
        finished = mpirun(ranks, "exchanging.py", folder, seed, timeout=90)
        assert finished.status == 0, finished.output
        return [dict(np.load(folder / f"{rank}.npz")) for rank in range(ranks)]

    return run


def rounding(case: Case, size: np.ndarray, count: int) -> np.ndarray:
    """Return how far a sum of ``count`` values may be from the true one; ``size``: see Case."""
    return np.finfo(case.dtype).eps * (count + 1) * size


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("ranks", RANKS)
def test_all_ranks_get_the_mean(results, ranks, exchange, name):
    case = CASES[name]
    for iteration in range(ITERATIONS):
        for found in results(ranks):
            for number, (mean, size, count) in enumerate(case.means(ranks, iteration)):
                array = found[f"{exchange}/{name}/{iteration}/{number}"]
                assert array.shape == mean.shape
                assert np.all(np.abs(array - mean) <= rounding(case, size, count))


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("ranks", RANKS)
def test_agrees_with_the_specification(results, ranks, exchange):
    case = CASES["mixed"]
    for found in results(ranks):
        for number, (_, size, count) in enumerate(case.means(ranks, 0)):
            ours = found[f"{exchange}/mixed/0/{number}"]
            specified = found[f"naive/mixed/0/{number}"]
            assert np.all(np.abs(ours - specified) <= 2 * rounding(case, size, count))


@pytest.mark.parametrize("exchange", SAME_EVERYWHERE)
@pytest.mark.parametrize("ranks", RANKS)
def test_all_ranks_get_the_same_bits(results, ranks, exchange):
    first, *others = results(ranks)
    names = [name for name in first if name.startswith(f"{exchange}/")]
    assert names
    for found in others:
        assert all(found[name].tobytes() == first[name].tobytes() for name in names)


@pytest.mark.parametrize("exchange", SAME_EVERY_TIME)
def test_every_run_gets_the_same_bits(results, exchange):
    once, again = results(3, seed=0)[0], results(3, seed=1)[0]
    names = [name for name in once if name.startswith(f"{exchange}/")]
    assert all(once[name].tobytes() == again[name].tobytes() for name in names)
