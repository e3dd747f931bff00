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
class Costs:
    """What a trial has measured: seconds by action, and bytes.

    ``memory`` is the most of any rank's, ``gpu`` None without a GPU, ``snapshot`` the files' size.
    """

    seconds: dict[str, float]
    memory: int
    gpu: int | None
    snapshot: int


def run(solver: Solver, snapshot: str, prefix: str) -> None:
    """Make the trial with a new solver; let rank 0 print what the whole run will take.

    The run will resume from ``snapshot``, if there is one, and write to the user's ``prefix``.
    """
    if snapshot:
        solver.restore(snapshot)
    rest = Remaining.of(solver.param, solver.iteration)
    costs = _measure(solver)
    if solver.cluster.rank == 0:
        free = shutil.disk_usage(Path(prefix).parent).free
        print("The solver, its nets and its data are in order. The whole run will take about:")
        rows = _rows(rest, costs, solver.param.max_time, solver.cluster.size, free)
        print(aligned(list(rows), left=(0, 1)))


def _measure(solver: Solver) -> Costs:
    """Make the steps of the trial; all ranks get the same times."""
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
    seconds["snapshots"] = _time(solver, solver.snapshot)
    files = Path(param.snapshot_prefix).parent.glob("check_iter_*")
    device: Any = solver.device
    return Costs(
        seconds=seconds,
        memory=int(cluster.max(np.array(_memory()))),
        gpu=device.memory().held if device.is_gpu else None,
        snapshot=sum(path.stat().st_size for path in files),
    )


def _rows(
    rest: Remaining, costs: Costs, max_time: float, ranks: int, free: int
) -> Iterator[tuple[str, str]]:
    """Yield names and values of what the whole run will take; ``free`` is space on the disk."""
    counts = asdict(rest)
    total = sum(counts[what] * seconds for what, seconds in costs.seconds.items())
    yield "time", f"{_duration(total)}, if data are read as fast"
    for what, seconds in costs.seconds.items():
        if counts[what]:
            yield (
                f"  {what}",
                f"{_duration(counts[what] * seconds)}: {counts[what]} of {seconds:.2g} s",
            )
    if 0 < max_time < total:
        yield "  max_time", f"ends the run after {_duration(max_time)}"
    yield "memory", fmt_bytes(costs.memory) + (f" on each of {ranks} ranks" if ranks > 1 else "")
    if costs.gpu is not None:
        yield "GPU memory", fmt_bytes(costs.gpu)
    if rest.snapshots:
        of_all = (
            f"{fmt_bytes(rest.snapshots * costs.snapshot)}, {fmt_bytes(costs.snapshot)} a snapshot"
        )
        yield "disk", f"{of_all}; {fmt_bytes(free)} are free"


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
