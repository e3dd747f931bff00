"""The part of inference.py that all processes share: answers its lines.

Needs nothing of pcaffe, so that every framework's interpreter can run it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from peak_memory import peak_memory

IDLE_SECONDS = 0.3
# So many values of an output are compared.
VALUES = 1000


def say(answer: Any) -> None:
    """Write a line of JSON."""
    print(json.dumps(answer), flush=True)


def serve(
    before: int, forward: Callable[[], Any], other: Callable[[str], Any] | None = None
) -> None:
    """Write the output of ``forward``, then answer lines.

    A line is a number of runs, or "idle": the answer is the share of a core that the process uses
    without work.  ``other`` answers all other lines.  ``before`` is the memory without the net.
    """
    say({"output": forward().reshape(-1)[:VALUES].tolist()})
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        if line.strip().isdigit():
            for _ in range(int(line)):
                forward()
            times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            say({**times, "memory": peak_memory() - before})
        elif line.strip() == "idle":
            time.sleep(IDLE_SECONDS)
            say((time.process_time() - cpu) / (time.perf_counter() - wall))
        elif other is not None:
            say(other(line))
