"""A trial of a run: two iterations, a test and a snapshot, then what the whole run will take."""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist.log import fmt_bytes
from pycaffe_dist.solvers.snapshots import check_prefix
from pycaffe_dist.table import aligned

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter
    from pycaffe_dist.solvers import Solver


@contextmanager
def elsewhere(param: SolverParameter, rank: int) -> Iterator[str]:
    """Give a folder for the files of a solver, which is removed at the end.

    Raises SnapshotError on rank 0 when the solver's own prefix could not be written to.
    """
    if rank == 0 and (param.snapshot or param.snapshot_after_train or param.best_output):
        check_prefix(param)
    with tempfile.TemporaryDirectory(prefix="pcaffe-check-") as folder:
        yield folder


@dataclass(frozen=True)
class Remaining:
    """The iterations that a run has still to make, and its tests and snapshots."""

    iterations: int
    tests: int
    snapshots: int

    @classmethod
    def of(cls, param: SolverParameter, iteration: int) -> Remaining:
        """Return what a solver does from an iteration on."""
        last, interval = max(param.max_iter, iteration), param.test_interval
        tests = last // interval - (iteration - 1) // interval if interval else 0
        if iteration == 0 and interval and not param.test_initialization:
            tests -= 1
        snapshots = last // param.snapshot - iteration // param.snapshot if param.snapshot else 0
        if param.snapshot_after_train and not (param.snapshot and last % param.snapshot == 0):
            snapshots += 1
        return cls(last - iteration, tests, snapshots)


@dataclass(frozen=True)
class Trial:
    """What a run has still to do and will take about, in seconds and bytes.

    ``seconds_each`` has the seconds of an iteration, a test and a snapshot, by the names of
    `Remaining`.  ``memory`` is the most of any rank's, ``gpu_memory`` None without a GPU.  Only
    rank 0 knows ``snapshot``, the size of one's files, and ``free``, the space on the disk.  A
    ``max_time`` above 0 may end the run earlier.
    """

    seconds: float
    remaining: Remaining
    seconds_each: dict[str, float]
    max_time: float
    ranks: int
    memory: int
    gpu_memory: int | None
    snapshot: int
    free: int

    def table(self) -> str:
        """Return the result as text."""
        title = "The solver, its nets and its data are in order. The whole run will take about:"
        return f"{title}\n{aligned(list(self._rows()), left=(0, 1))}"

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "time", f"{_duration(self.seconds)}, if data are read as fast"
        for what, count in asdict(self.remaining).items():
            if count:
                each = self.seconds_each[what]
                yield f"  {what}", f"{_duration(count * each)}: {count} of {each:.2g} s"
        if 0 < self.max_time < self.seconds:
            yield "  max_time", f"ends the run after {_duration(self.max_time)}"
        of_each = f" on each of {self.ranks} ranks" if self.ranks > 1 else ""
        yield "memory", fmt_bytes(self.memory) + of_each
        if self.gpu_memory is not None:
            yield "GPU memory", fmt_bytes(self.gpu_memory)
        if self.remaining.snapshots:
            all_files = fmt_bytes(self.remaining.snapshots * self.snapshot)
            each_file = f"{fmt_bytes(self.snapshot)} a snapshot"
            yield "disk", f"{all_files}, {each_file}; {fmt_bytes(self.free)} are free"


def run(solver: Solver, snapshot: str, prefix: str) -> Trial:
    """Make the trial with a new solver; return what the whole run will take.

    The run will resume from ``snapshot``, if there is one, and write to the user's ``prefix``.
    """
    if snapshot:
        solver.restore(snapshot)
    param, cluster = solver.param, solver.cluster
    rest = Remaining.of(param, solver.iteration)
    each = _seconds_each(solver)
    files = Path(param.snapshot_prefix).parent.glob("check_iter_*")
    device: Any = solver.device
    return Trial(
        seconds=sum(count * each[what] for what, count in asdict(rest).items()),
        remaining=rest,
        seconds_each=each,
        max_time=param.max_time,
        ranks=cluster.size,
        memory=int(cluster.max(np.array(_memory()))),
        gpu_memory=device.memory().held if device.is_gpu else None,
        snapshot=sum(path.stat().st_size for path in files),
        free=shutil.disk_usage(Path(prefix).parent).free if cluster.rank == 0 else 0,
    )


def _seconds_each(solver: Solver) -> dict[str, float]:
    """Make the steps of the trial; return the seconds by action, the same ones on all ranks."""
    param, cluster = solver.param, solver.cluster
    batches = list(param.test_iter)
    # The steps make no tests and snapshots; in a test each rank has one batch.
    param.test_interval = param.snapshot = param.patience = 0
    param.test_iter[:] = [min(count, cluster.size) for count in batches]
    solver.step(1)
    seconds = {"iterations": _time(solver, lambda: solver.step(1)), "tests": 0.0}
    if any(batches):
        solver.test_all()
        rounds = sum(-(-count // cluster.size) for count in batches) / len(batches)
        seconds["tests"] = _time(solver, solver.test_all) * rounds
    return seconds | {"snapshots": _time(solver, solver.snapshot)}


def _time(solver: Solver, act: Callable[[], object]) -> float:
    """Return the longest time that an action takes on any rank."""
    started = perf_counter()
    act()
    solver.finish_updates()
    solver.device.synchronize()
    return float(solver.cluster.max(np.array(perf_counter() - started)))


def _memory() -> int:
    """Return the most bytes of memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _duration(seconds: float) -> str:
    """Return a time in its two largest units."""
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes = round(seconds / 60)
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
