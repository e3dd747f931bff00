"""Every registered exchange against the mean of NumPy and against ``naive``, on 1 to 16 ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from exchange_cases import CASES, ITERATIONS, Case

from pycaffe_dist.exchange import exchange_names

RANKS = (1, 2, 3, 4, 16)
# MPI does not promise what naive relies on: the same bits everywhere and every time.
EXACT = [name for name in exchange_names() if name != "naive"]

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


def means(case: Case, ranks: int, iteration: int) -> list[np.ndarray]:
    """Return the mean gradients, summed in float64."""
    gradients = [case.gradients(rank, iteration) for rank in range(ranks)]
    return [np.mean(np.array(of_one, np.float64), axis=0) for of_one in zip(*gradients)]


def scales(case: Case, ranks: int, iteration: int) -> list[np.ndarray]:
    """Return the mean of the gradients' absolute values: rounding errors are relative to it."""
    gradients = [case.gradients(rank, iteration) for rank in range(ranks)]
    return [np.mean(np.abs(np.array(of_one, np.float64)), axis=0) for of_one in zip(*gradients)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("exchange", exchange_names())
@pytest.mark.parametrize("ranks", RANKS)
def test_all_ranks_get_the_mean(results, ranks, exchange, name):
    case = CASES[name]
    precision = np.finfo(case.dtype).eps * (ranks + 1)
    for iteration in range(ITERATIONS):
        expected, scale = means(case, ranks, iteration), scales(case, ranks, iteration)
        for found in results(ranks):
            for number, mean in enumerate(expected):
                array = found[f"{exchange}/{name}/{iteration}/{number}"]
                assert array.shape == mean.shape
                assert np.all(np.abs(array - mean) <= precision * scale[number])


@pytest.mark.parametrize("exchange", exchange_names())
@pytest.mark.parametrize("ranks", RANKS)
def test_agrees_with_the_specification(results, ranks, exchange):
    case = CASES["mixed"]
    scale = scales(case, ranks, 0)
    for found in results(ranks):
        for number in range(len(case.shapes)):
            ours = found[f"{exchange}/mixed/0/{number}"]
            specified = found[f"naive/mixed/0/{number}"]
            precision = 2 * np.finfo(case.dtype).eps * (ranks + 1)
            assert np.all(np.abs(ours - specified) <= precision * scale[number])


@pytest.mark.parametrize("exchange", EXACT)
@pytest.mark.parametrize("ranks", RANKS)
def test_all_ranks_get_the_same_bits(results, ranks, exchange):
    first, *others = results(ranks)
    names = [name for name in first if name.startswith(f"{exchange}/")]
    assert names
    for found in others:
        assert all(found[name].tobytes() == first[name].tobytes() for name in names)


@pytest.mark.parametrize("exchange", EXACT)
def test_every_run_gets_the_same_bits(results, exchange):
    once, again = results(3, seed=0)[0], results(3, seed=1)[0]
    names = [name for name in once if name.startswith(f"{exchange}/")]
    assert all(once[name].tobytes() == again[name].tobytes() for name in names)
