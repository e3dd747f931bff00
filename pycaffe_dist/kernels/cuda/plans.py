"""The plan of cuDNN that is fastest for an operation: timed once on a device, and kept on disk.

Later runs take the kept plan, so that they give the same bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pycaffe_dist.kernels import caching
from pycaffe_dist.log import logger

# The name of our own kernels among the plans.
OURS = "ours"
# cuDNN ranks its plans: so many of those that it does not refuse are timed, each so often.
_MOST_PLANS, _RUNS = 6, 3


def folder() -> Path:
    """Return where the choices are kept: one file of JSON for each operation."""
    return caching.cache_directory() / "cudnn"


def choose(operation: Any, run: Callable[[], None], ours: Callable[[], None]) -> bool:
    """Select an operation's fastest plan; return False if our own kernels are faster.

    ``run`` runs the operation with its present plan, and ``ours`` our own kernels.
    """
    name = hashlib.sha256(operation.key.encode()).hexdigest()[:24]
    path = folder() / f"{name}.json"
    kept = _read(path)
    if kept is None or not _select(operation, kept):
        path.unlink(missing_ok=True)
        times = _times(operation, run, ours)
        best = min(times, key=times.__getitem__)
        logger.debug("%s: %s is the fastest of %s", operation.key, best, times)
        _keep(path, {"operation": operation.key, "plan": best, "seconds": times})
        # Another process may have been faster, and all take the same.
        kept = _read(path) or best
        if not _select(operation, kept):
            return False
    return kept != OURS


def _times(operation: Any, run: Callable[[], None], ours: Callable[[], None]) -> dict[str, float]:
    gpu = operation.gpu
    times = {OURS: _seconds(gpu, ours)}
    for plan in operation.plans():
        if len(times) > _MOST_PLANS:
            break
        if _select(operation, plan):
            with contextlib.suppress(*operation.refusals):
                times[plan] = _seconds(gpu, run)
    return times


def _seconds(gpu: Any, run: Callable[[], None]) -> float:
    """Return the mean seconds of a call, after one that does not count."""
    run()
    gpu.synchronize_stream()
    start = time.perf_counter()
    for _ in range(_RUNS):
        run()
    gpu.synchronize_stream()
    return (time.perf_counter() - start) / _RUNS


def _select(operation: Any, plan: str) -> bool:
    """Let an operation use a plan; return False if cuDNN refuses it."""
    if plan != OURS:
        try:
            operation.select(plan)
        except operation.refusals:
            return False
    return True


def _read(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text())["plan"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(path: Path, choice: dict[str, Any]) -> None:
    """Write a choice, unless another process has written one; a full disk is no error."""
    part = path.with_suffix(f".{os.getpid()}.part")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(choice))
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
        part.unlink()
