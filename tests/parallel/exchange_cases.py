"""The test cases of exchanges: sets of parameters and their gradients on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from fake_parameters import FakeParameter, inner_products, parameters

from pycaffe_dist.config import ExchangeSettings, Wire
from pycaffe_dist.exchange import AUTO, exchange_class, exchange_names
from pycaffe_dist.exchange.base import Moves
from pycaffe_dist.gpu.emulated import compiler

ITERATIONS = 2
# The exchanges that solving.py trains with on CPUs, also the ones that update parameters.
TRAINING = [AUTO, *(name for name in exchange_names() if not exchange_class(name).on_device)]
# The exchanges that combine gradients.
EXCHANGES = [
    AUTO,
    *(name for name in exchange_names() if exchange_class(name).moves is not Moves.UPDATE),
]
COMPRESSING = [name for name in exchange_names() if exchange_class(name).compresses]
WIRES = [wire for wire in Wire if wire is not Wire.FLOAT32]
# These need gradients on GPUs: each of a few ranks emulates one.
ON_DEVICE = [
    name for name in exchange_names() if exchange_class(name).on_device and compiler() is not None
]
# Small, so that few elements already make buckets and slices.
BUCKET_BYTES = 4 << 10
SLICE_BYTES = 32 << 10
# The hosts that the exchanges see: one host, or several with equal or different numbers of ranks,
# which need not be neighbours.
HOSTS = {
    1: ("a",),
    2: ("a", "a"),
    3: ("a", "a", "b"),
    4: ("a", "b", "a", "b"),
    7: (*"aab", *"bca", "c"),
    16: (*"aaaaa", *"bbbb", *"ccaba", *"cc"),
}


def settings(wire: Wire = Wire.FLOAT32) -> ExchangeSettings:
    return ExchangeSettings(bucket_bytes=BUCKET_BYTES, slice_bytes=SLICE_BYTES, wire=wire)


@dataclass(frozen=True, eq=False)
class Case:
    """Parameters of these shapes, and the weights of inner products over ``samples``.

    ``shuffled`` ranks make their gradients in different orders.
    """

    shapes: Sequence[tuple[int, ...]]
    weights: Sequence[tuple[int, ...]] = ((5, 7),)
    samples: int = 3
    dtype: type = np.float32
    shuffled: bool = False

    def parameters(self) -> list[FakeParameter]:
        plain = parameters(self.shapes, self.dtype)
        return plain + inner_products(self.weights, self.samples, self.dtype)

    def gradients(self, rank: int, iteration: int) -> list[np.ndarray]:
        """Return one rank's gradients; their very different sizes make the order of sums show."""
        rng = np.random.default_rng([rank, iteration])
        return [self._values(rng, shape) for shape in self.shapes]

    def factors(self, rank: int, iteration: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the factors of one rank's gradients of the weights."""
        rng = np.random.default_rng([rank, iteration, 1])
        return [
            (self._values(rng, (self.samples, m)), self._values(rng, (self.samples, n)))
            for m, n in self.weights
        ]

    def means(self, ranks: int, iteration: int) -> list[tuple[np.ndarray, np.ndarray, int]]:
        """Return the mean gradients in float64, the size of the terms, and their number."""
        return _means(self, ranks, iteration)

    def _values(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        sizes = 10.0 ** rng.integers(-3, 4, shape)
        return (rng.standard_normal(shape) * sizes).astype(self.dtype)


@cache
def _means(case: Case, ranks: int, iteration: int) -> list[tuple[np.ndarray, np.ndarray, int]]:
    plain = [case.gradients(rank, iteration) for rank in range(ranks)]
    found = [
        (np.mean(parts, axis=0), np.mean(np.abs(parts), axis=0), ranks)
        for parts in (np.array(of_one, np.float64) for of_one in zip(*plain))
    ]
    factors = [case.factors(rank, iteration) for rank in range(ranks)]
    for of_one in zip(*factors):
        u, v = (np.concatenate(side).astype(np.float64) for side in zip(*of_one))
        products = u.T @ v / ranks, np.abs(u).T @ np.abs(v) / ranks
        found.append((*products, ranks * case.samples))
    return found


class Even(Case):
    """Gradients of one size, so that 16 bits can hold the largest and the smallest."""

    def _values(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(0.5, 1.0, shape).astype(self.dtype)


MIXED = [(7, 5), (7,), (0,), (1,), (3, 1001), (13,), (90, 101), (90,), (20011,), (3,), (65537,)]
CASES = {
    "mixed": Case(MIXED, weights=((1, 1), (130, 257), (3, 40), (64, 64)), samples=7),
    "float64": Case([(11, 3), (11,), (5001,), (1,)], dtype=np.float64),
    "many small": Case([(number % 17,) for number in range(120)], samples=1),
    "one element": Case([(1,)], weights=((1, 1),), samples=1),
    "nothing": Case([(0,)], weights=((0, 4), (4, 0))),
    "different orders": Case([(2000 + 3 * number,) for number in range(12)], shuffled=True),
}
# With so many ranks on few cores some cases are enough; the most take half a minute.
MANY, MOST = 7, 16


def cases(ranks: int) -> dict[str, Case]:
    return CASES if ranks < MANY else {"mixed": replace(CASES["mixed"], shuffled=True)}


# How often the same gradients are exchanged, so that rounding errors would add up.
WIRE_ITERATIONS = 10
WIRE_CASE = Even([(7, 5), (0,), (1,), (3001,), (9000,), (5,)], weights=((3, 4), (40, 50)))
