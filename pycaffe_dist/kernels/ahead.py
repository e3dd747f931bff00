"""Compiles, on all cores, the kernels that a dry run found, before they are needed."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pycaffe_dist.kernels import caching, workers
from pycaffe_dist.kernels.compiling import compile_for, is_kept
from pycaffe_dist.kernels.dry_run import Needs
from pycaffe_dist.kernels.jit.codegen.chains import chain_kernels
from pycaffe_dist.kernels.jit.codegen.objects import compile_microkernel, is_ready
from pycaffe_dist.kernels.jit.codegen.waiting import swap_kernel
from pycaffe_dist.kernels.workers import Task, Worker
from pycaffe_dist.log import fmt, logger

# Seconds between two log lines about the progress.
SECONDS_BETWEEN_LINES = 5.0
# Seconds for which a process waits for another one before it compiles for itself.
LOCK_SECONDS = 600.0


class _Progress:
    """Logs the progress, and writes it to a file for the processes that wait."""

    def __init__(self, kernels: int, file: Path):
        self._kernels, self._file, self._done = kernels, file, 0
        self.failed = False
        self._start = self._said = time.monotonic()
        folder = caching.cache_directory()
        logger.info("Compiling %d kernels for this machine; they are kept in %s", kernels, folder)
        self._write()

    def one_more(self, error: Exception | None) -> None:
        self._done += 1
        self._write()
        now = time.monotonic()
        if error is not None:
            self.failed = True
            # The first use of the kernel compiles it in this process, or says why it cannot.
            logger.warning("A kernel was not compiled ahead: %s: %s", type(error).__name__, error)
        elif now > self._said + SECONDS_BETWEEN_LINES and self._done < self._kernels:
            self._said = now
            logger.info("Compiled %d of %d kernels", self._done, self._kernels)

    def end(self) -> None:
        seconds = fmt(round(time.monotonic() - self._start, 1))
        logger.info("Compiled %d kernels in %s s", self._done, seconds)

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            self._file.write_text(f"{self._done} of {self._kernels}")


class _Watcher:
    """Logs now and then the progress of the process that this one waits for."""

    def __init__(self, file: Path):
        self._file, self._said = file, time.monotonic()

    def look(self) -> bool:
        """Log the progress if it is due; return False, so that this process goes on waiting."""
        now = time.monotonic()
        if now > self._said + SECONDS_BETWEEN_LINES:
            self._said = now
            with contextlib.suppress(OSError):
                logger.info("Another process compiled %s kernels", self._file.read_text())
        return False


def compile_needs(needs: Needs, others: Sequence[Task] = ()) -> bool:
    """Compile what ``needs`` lists and the cache lacks, in worker processes; wait for it.

    ``others`` are tasks that compile the kernels that no dry run finds.  Returns whether all
    kernels are cached now.
    """
    for kernel in (swap_kernel(), *chain_kernels()):  # a dry run has one thread and no chains
        needs.add_microkernel(*kernel)
    if not _groups(needs, others):
        return True
    # One process of a host compiles, on all cores; the others find what they need afterwards.
    folder = caching.cache_directory()
    file = folder / "compiling.progress"
    with caching.exclusive(folder / "compiling.lock", _Watcher(file).look, LOCK_SECONDS):
        groups = _groups(needs, others)
        if not groups:
            return True
        progress = _Progress(sum(map(len, groups)), file)
        workers.run_all(groups, progress.one_more)
        progress.end()
        return not progress.failed


def _groups(needs: Needs, others: Sequence[Task]) -> list[list[Task]]:
    """Return what to compile, in groups for one worker each, the longest group first."""
    loops: dict[str, list[Task]] = defaultdict(list)
    for function, types in needs.loops:
        if not is_kept(function, types):
            # Loops of a module call the same helpers, which one worker compiles once.
            module, name = function.py_func.__module__, function.py_func.__name__
            loops[module].append(partial(_compile_loop, module, name, types))
    microkernels: list[list[Task]] = [
        [partial(_compile_microkernel, spec, target, layer)]
        for (spec, target), layer in needs.microkernels.items()
        if not is_ready(spec, target)
    ]
    longest_first = sorted(loops.values(), key=len, reverse=True)
    return [*([task] for task in others), *longest_first, *microkernels]


def _compile_loop(module: str, name: str, types: tuple, worker: Worker) -> None:
    worker.run(compile_for, module, name, types)


def _compile_microkernel(spec: Any, target: Any, layer: str, worker: Worker) -> None:
    compile_microkernel(spec, target, worker, layer)
