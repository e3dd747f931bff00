"""A process that is killed while it writes snapshots always leaves a good latest one."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from tiny import tiny_solver

from pycaffe_dist.snapshot import catalog
from pycaffe_dist.threads import set_threads, thread_count

KILLS = 10
MANY_KILLS = 30
# In seconds; after a child that wrote nothing, the next one lives longer: the machine is busy.
LONGEST_LIFE, MOST = 0.1, 1.0


def write_for_ever(folder: Path, fields: str, ready: int) -> None:
    """Resume from the latest snapshot, say so, and write one after every iteration.

    This ends when the test is killed; otherwise it would keep the pipes of the test's process open.
    """
    parent = os.getppid()
    solver = tiny_solver(folder, fields, keep=3)
    solver.restore(catalog.latest(f"{folder}/tiny").state)
    os.write(ready, b"!")
    while os.getppid() == parent:
        solver.step(1)


def in_child(function, *args) -> int:
    """Run a function in a child process that ends with it; return the child's id."""
    child = os.fork()
    if child == 0:
        try:
            function(*args)
        finally:
            os._exit(1)
    return child


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork to be quick")
@pytest.mark.parametrize("kills", [KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.long)])
@pytest.mark.parametrize("format", ["BINARYPROTO", "HDF5"])
def test_a_kill_at_any_moment_leaves_a_good_snapshot(tmp_path, format, kills):
    fields = f"snapshot: 1 snapshot_format: {format}"
    threads = thread_count()
    set_threads(1)
    try:
        # Compile and import here, so that the children need not.
        first = tiny_solver(tmp_path, fields)
        first.step(2)
        first.close()
        life, longest = random.Random(kills), LONGEST_LIFE
        reached = [0]
        is_ready, ready = os.pipe()
        while len(reached) <= kills:
            child = in_child(write_for_ever, tmp_path, fields, ready)
            os.read(is_ready, 1)
            time.sleep(life.uniform(0, longest))
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended by itself"
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            newest = catalog.snapshots(f"{tmp_path}/tiny")[0]
            catalog.check(newest)
            assert newest.iteration >= reached[-1]
            longest = min(1.5 * longest, MOST) if newest.iteration == reached[-1] else LONGEST_LIFE
            reached.append(newest.iteration)
    finally:
        set_threads(threads)
    assert len(set(reached)) > kills / 5  # the children did write
    solver = tiny_solver(tmp_path, fields)
    solver.restore(catalog.latest(f"{tmp_path}/tiny").state)
    assert solver.iteration == reached[-1]
    # Three, one that was being removed, and one that was incomplete.
    assert len(list(tmp_path.glob("tiny_iter_*.solverstate*.json"))) <= 5
