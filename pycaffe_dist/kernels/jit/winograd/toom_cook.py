"""Winograd's matrices: m sums of r products each from m + r - 1 multiplications.

With Aᵀ, G and Bᵀ of `matrices`, the m outputs y[i] = Σ d[i + k]·g[k] are Aᵀ·((G·g) ∘ (Bᵀ·d)); in
two dimensions each matrix is applied from both sides.  (Toom 1963, Cook 1966, Winograd 1980; for
convolutions Lavin and Gray 2015.)
"""

from __future__ import annotations

import functools
from fractions import Fraction

Matrix = tuple[tuple[Fraction, ...], ...]

# The points at which the polynomials are evaluated, besides infinity, by the number of
# multiplications.  The points for six and eight were chosen for small rounding errors; their powers
# are exact in binary.
POINTS = {
    4: (Fraction(0), Fraction(1), Fraction(-1)),
    6: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
    8: tuple(map(Fraction, ("0", "1", "-1", "1/2", "-1/2", "2", "-2"))),
}


def _polynomial(roots: tuple[Fraction, ...]) -> list[Fraction]:
    """Return the coefficients of Π (x - root), the constant one first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        scaled = [root * value for value in coefficients] + [Fraction(0)]
        coefficients = [a - b for a, b in zip(shifted, scaled)]
    return coefficients


@functools.lru_cache(maxsize=8)
def matrices(outputs: int, taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return Aᵀ, G and Bᵀ for m ``outputs`` and r ``taps``, where `POINTS` has m + r - 1."""
    size = outputs + taps - 1
    points = POINTS[size]
    output, filters, inputs = [], [], []
    for i in range(outputs):
        output.append((*(point**i for point in points), Fraction(int(i == outputs - 1))))
    for j, point in enumerate(points):
        others = points[:j] + points[j + 1 :]
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        filters.append(tuple(point**k / scale for k in range(taps)))
        inputs.append((*_polynomial(others), Fraction(0)))
    filters.append(tuple(Fraction(int(k == taps - 1)) for k in range(taps)))
    inputs.append(tuple(_polynomial(points)))
    return tuple(output), tuple(filters), tuple(inputs)
