"""The contract of exchanges: every registered one against ``naive``, on 1 to 16 ranks.

``naive`` is the specification, and is compared with NumPy in double precision.  The registry lists
the exchanges; their inputs are in exchange_cases.py and programs/solving.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from exchange_cases import (
    CASES,
    COMPRESSING,
    EXCHANGES,
    HOSTS,
    ITERATIONS,
    MANY,
    MOST,
    ON_DEVICE,
    TRAINING,
    WIRE_CASE,
    WIRE_ITERATIONS,
    WIRES,
    Case,
    cases,
)

from pycaffe_dist.config import Wire
from pycaffe_dist.exchange import AUTO, exchange_class
from pycaffe_dist.exchange.base import Moves

RANKS = [pytest.param(ranks, marks=[pytest.mark.long] * (ranks > 3)) for ranks in HOSTS]
FEW_RANKS = [param for ranks, param in zip(HOSTS, RANKS) if ranks < MANY]
SPECIFICATION = "naive"
# auto's choice depends on the speed of links and cores at the start of the run.
SAME_EVERY_TIME = [n for n in EXCHANGES if n != AUTO and exchange_class(n).deterministic]
SAME_EVERYWHERE = [AUTO, *SAME_EVERY_TIME]
# The largest relative error of rounding.
UNIT = {Wire.BFLOAT16: 2**-8, Wire.FLOAT16: 2**-11}

Results = list[dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def results(mpirun, kept_mpirun, tmp_path_factory) -> Callable[..., Results]:
    """Return a function that runs all exchanges, on some cases or all.

    It takes the ranks, a seed and names of cases, and returns every rank's arrays by name.
    """

    @cache
    def run(ranks: int, seed: int, *names: str) -> Results:
        folder = tmp_path_factory.mktemp(f"on_{ranks}_ranks")
        start = kept_mpirun if ranks < MANY else mpirun
        finished = start(ranks, "exchanging.py", folder, seed, *names, timeout=240)
        assert finished.status == 0, finished.output
        return [dict(np.load(folder / f"{rank}.npz")) for rank in range(ranks)]

    return lambda ranks, seed=0, *names: run(ranks, seed, *names)


@pytest.fixture(scope="module")
def trained(kept_mpirun, tmp_path_factory) -> Callable[[int], dict[str, np.ndarray]]:
    """Return a function that trains with all exchanges and returns gradients and weights."""

    @cache
    def run(ranks: int) -> dict[str, np.ndarray]:
        folder = tmp_path_factory.mktemp(f"trained_on_{ranks}_ranks")
        finished = kept_mpirun(ranks, "solving.py", folder / "found.npz", timeout=240)
        assert finished.status == 0, finished.output
        return dict(np.load(folder / "found.npz"))

    return run


def works(exchange: str, ranks: int) -> bool:
    """Tell whether an exchange has work: one only combines ranks that share a host."""
    if exchange != AUTO and exchange_class(exchange).on_device:
        return exchange in ON_DEVICE and ranks < MANY
    return exchange != "hierarchical" or ranks > 1


def rounding(case: Case, size: np.ndarray, count: int) -> np.ndarray:
    """Return the largest error of a sum of ``count`` values; ``size``: see Case."""
    return np.finfo(case.dtype).eps * (count + 1) * size


@pytest.mark.parametrize("ranks", RANKS)
def test_exchanges_are_refused_only_if_they_have_no_work(results, ranks):
    refused = [name for name in EXCHANGES if not works(name, ranks)]
    for found in results(ranks):
        assert found["refused"].tolist() == refused


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("ranks", RANKS)
def test_all_ranks_get_the_mean(results, ranks, exchange):
    for name, case in cases(ranks).items() if works(exchange, ranks) else ():
        for iteration in range(ITERATIONS):
            means = case.means(ranks, iteration)
            for rank, found in enumerate(results(ranks)):
                for number, (mean, size, count) in enumerate(means):
                    array = found[f"{exchange}/{name}/{iteration}/{number}"]
                    assert array.shape == mean.shape
                    near = np.abs(array - mean) <= rounding(case, size, count)
                    assert np.all(near), (name, iteration, number, rank)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("ranks", RANKS)
def test_agrees_with_the_specification(results, ranks, exchange):
    case = CASES["mixed"]
    for found in results(ranks) if works(exchange, ranks) else ():
        for number, (_, size, count) in enumerate(case.means(ranks, 0)):
            ours = found[f"{exchange}/mixed/0/{number}"]
            specified = found[f"{SPECIFICATION}/mixed/0/{number}"]
            assert np.all(np.abs(ours - specified) <= 2 * rounding(case, size, count))


@pytest.mark.parametrize("exchange", SAME_EVERYWHERE)
@pytest.mark.parametrize("ranks", RANKS)
def test_all_ranks_get_the_same_bits(results, ranks, exchange):
    first, *others = results(ranks)
    names = [name for name in first if name.startswith((f"{exchange}/", f"{exchange}:"))]
    assert bool(names) == works(exchange, ranks)
    for found in others:
        assert all(found[name].tobytes() == first[name].tobytes() for name in names)


@pytest.mark.parametrize("exchange", SAME_EVERY_TIME)
def test_every_run_gets_the_same_bits(results, exchange):
    once, again = results(3)[0], results(3, 1, "mixed", "different orders")[0]
    names = [name for name in again if name.startswith(f"{exchange}/")]
    assert names
    assert all(once[name].tobytes() == again[name].tobytes() for name in names)


@pytest.mark.parametrize("exchange", COMPRESSING)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("ranks", FEW_RANKS)
def test_16_bits_are_as_accurate_as_possible(results, ranks, wire, exchange):
    """Each number is rounded at most once per hop, and there are at most as many hops as ranks."""
    found = results(ranks)[0]
    bound = UNIT[wire] * (ranks + 2)
    for number, (mean, size, _) in enumerate(
        WIRE_CASE.means(ranks, 0) if works(exchange, ranks) else ()
    ):
        array = found[f"{exchange}:{wire.value}/first/{number}"]
        assert np.all(np.abs(array - mean) <= bound * size)


@pytest.mark.parametrize("exchange", COMPRESSING)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("ranks", FEW_RANKS)
def test_rounding_errors_of_gradients_are_sent_later(results, ranks, wire, exchange):
    """After many iterations the sum of all means is as accurate as one of them."""
    found = results(ranks)[0]
    count = len(WIRE_CASE.shapes)
    if exchange_class(exchange).moves is not Moves.FACTORS:
        count += len(WIRE_CASE.weights)
    means = WIRE_CASE.means(ranks, 0)[:count] if works(exchange, ranks) else ()
    for number, (mean, size, _) in enumerate(means):
        total = found[f"{exchange}:{wire.value}/sum/{number}"]
        # The float32 additions of all iterations round, too.
        bound = UNIT[wire] * (ranks + 2) + WIRE_ITERATIONS * (ranks + 1) * 2**-23
        assert np.all(np.abs(total - WIRE_ITERATIONS * mean) <= bound * np.maximum(size, 1))


@pytest.mark.parametrize("exchange", [name for name in TRAINING if name != SPECIFICATION])
@pytest.mark.parametrize("ranks", [*FEW_RANKS[1:], pytest.param(MOST, marks=pytest.mark.long)])
def test_training_agrees_with_the_specification(trained, ranks, exchange):
    """Methods (all on four ranks), iter_size, clipping, shared weights, BatchNorm: solving.py."""
    found = trained(ranks)
    names = [name for name in found if name.startswith(f"{SPECIFICATION}/")]
    compared = 0
    for name in names:
        specified = found[name]
        ours = found.get(name.replace(SPECIFICATION, exchange, 1))
        if ours is None:
            continue
        compared += 1
        norm = np.linalg.norm(specified)
        tolerance = 1e-5 if "/gradient/" in name else 1e-4
        assert np.linalg.norm(ours - specified) <= tolerance * norm, name
    assert compared
