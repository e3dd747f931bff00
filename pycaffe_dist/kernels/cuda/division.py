"""Divisions by numbers that are known at a launch, without a division on the GPU."""

from __future__ import annotations

import functools


@functools.lru_cache(maxsize=4096)
def division(divisor: int) -> tuple[int, int]:
    """Return (factor, bits) with ``n // divisor == n * factor >> bits`` for 0 <= n < 2^31.

    They are arguments of ``divide`` in common.cuh.  (Granlund and Montgomery, 1994.)
    """
    bits = 31 + (divisor - 1).bit_length()
    return -(-(1 << bits) // divisor), bits
