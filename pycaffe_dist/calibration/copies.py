"""How fast this rank copies memory: one number, measured when the run starts."""

from __future__ import annotations

import time

import numpy as np

# Larger than a core's own caches, as what the ranks of a host hand over to each other is.
_BYTES = 4 << 20
COPIED_BYTES = 2 * _BYTES  # read and written
_REPETITIONS = 4


def measure_seconds() -> float:
    """Return the time of a copy that moves ``COPIED_BYTES``, in one thread.

    It is the best of a few, after one that touches the memory for the first time.
    """
    source, target = np.zeros(_BYTES, np.uint8), np.empty(_BYTES, np.uint8)
    seconds = []
    for _ in range(1 + _REPETITIONS):
        started = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])
