"""The most memory that this process has had so far."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path


def peak_memory() -> int:
    """Return the peak of the resident memory, in bytes."""
    # On Linux getrusage includes the parent's memory from before this program started.
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return 1024 * int(found[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
