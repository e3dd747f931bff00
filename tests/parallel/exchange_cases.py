"""What the exchanges are tested with: sets of parameters and their gradients on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from fake_parameters import FakeParameter, parameters

ITERATIONS = 2
# Small, so that fusing and slicing happen with few elements.
BUCKET_BYTES = 4 << 10
SLICE_BYTES = 32 << 10


@dataclass(frozen=True)
class Case:
    """Parameters of these shapes; ``shuffled`` ranks make their gradients in different orders."""

    shapes: Sequence[tuple[int, ...]]
    dtype: type = np.float32
    shuffled: bool = False

    def parameters(self) -> list[FakeParameter]:
        return parameters(self.shapes, self.dtype)

    def gradients(self, rank: int, iteration: int) -> list[np.ndarray]:
        """Return one rank's gradients, of very different sizes, so that the order of sums shows."""
        rng = np.random.default_rng([rank, iteration])
        return [
            (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(self.dtype)
            for shape in self.shapes
        ]


MIXED = [(7, 5), (7,), (0,), (1,), (3, 1001), (13,), (90, 101), (90,), (20011,), (3,), (65537,)]
CASES = {
    "mixed": Case(MIXED),
    "float64": Case([(11, 3), (11,), (5001,), (1,)], np.float64),
    "many small": Case([(number % 17,) for number in range(120)]),
    "one element": Case([(1,)]),
    "nothing": Case([(0,)]),
    "different orders": Case([(2000 + 3 * number,) for number in range(12)], shuffled=True),
}
