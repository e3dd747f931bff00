"""Two trainings do not write snapshots with one prefix; no lock outlives its process."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_snapshots import names, of_iterations
from tiny import tiny_param, tiny_solver

from pycaffe_dist.config import Action, TrainOptions
from pycaffe_dist.errors import WRONG_INPUT, UsageError, exit_status
from pycaffe_dist.schema import text
from pycaffe_dist.snapshot import prefix as prefixes
from pycaffe_dist.training.trainer import train

OWNER = """
import sys, time
from pycaffe_dist.snapshot import prefix
hold = prefix.take(sys.argv[1], sys.argv[2])
print(hold.owner or "", flush=True)
time.sleep(60)
"""


@contextmanager
def other_process(prefix: Path | str, launch: str = "") -> Iterator[subprocess.Popen[str]]:
    """Give a prefix to another process until it is killed or the block ends."""
    line = [sys.executable, "-c", OWNER, str(prefix), launch]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "\n"
            yield process
        finally:
            process.kill()


def run(folder: Path) -> None:
    """Train like the command."""
    file = folder / "solver.prototxt"
    file.write_text(text.to_text(tiny_param(folder, "snapshot: 4")))
    train(TrainOptions(str(file)), lambda: Action.NONE)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(prefixes, "PATIENCE_SECONDS", 0.2)


def test_a_second_training_ends_before_anything_is_built(tmp_path, caplog, impatient):
    leftover = tmp_path / ".tiny_iter_4.caffemodel.0123abcd.tmp"
    with caplog.at_level(logging.INFO, "pcaffe"), other_process(tmp_path / "tiny") as owner:
        leftover.touch()
        with pytest.raises(UsageError) as caught:
            run(tmp_path)
    host = os.uname().nodename
    words = f"is in use by process {owner.pid} on {host} since {time.strftime('%Y-')}"
    assert str(caught.value).startswith(f"the snapshot prefix '{tmp_path}/tiny' {words}")
    assert str(caught.value).endswith("; end that one, or choose another snapshot_prefix")
    assert exit_status(caught.value) == WRONG_INPUT
    assert "Initializing" not in caplog.text and leftover.exists()
    run(tmp_path)  # the owner was killed
    assert names(tmp_path) == sorted(["solver.prototxt", *of_iterations(4, 8)])
    assert not prefixes.path_of(f"{tmp_path}/tiny").exists()


def test_a_training_waits_for_an_owner_that_ends_soon(tmp_path):
    with other_process(tmp_path / "tiny") as owner:
        began = time.monotonic()
        subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {owner.pid}"])
        hold = prefixes.take(f"{tmp_path}/tiny", patience=20)
        assert hold.owner is None and time.monotonic() < began + 10


def test_an_earlier_start_of_the_same_launch_does_not_count(tmp_path, monkeypatch, impatient):
    monkeypatch.setenv("PCAFFE_JOB", "launch1.1")
    with other_process(tmp_path / "tiny", "launch2"), pytest.raises(UsageError, match="is in use"):
        run(tmp_path)
    with other_process(tmp_path / "tiny", "launch1"):
        run(tmp_path)
    assert names(tmp_path) == sorted(["solver.prototxt", *of_iterations(4, 8)])


def test_trainings_without_snapshots_need_no_prefix(tmp_path):
    file = tmp_path / "solver.prototxt"
    file.write_text(text.to_text(tiny_param(tmp_path, "snapshot_after_train: false")))
    with other_process(tmp_path / "tiny"):
        train(TrainOptions(str(file)), lambda: Action.NONE)


def test_solvers_of_one_process_share_their_prefix(tmp_path, caplog):
    """As in Caffe, where notebooks make solver after solver."""
    lock = prefixes.path_of(f"{tmp_path}/tiny")
    first, second = (tiny_solver(tmp_path, "snapshot: 2") for _ in range(2))
    first.step(2)
    second.step(4)
    first.step(4)
    assert "in use" not in caplog.text
    first.close()
    assert lock.exists()
    second.close()
    assert names(tmp_path) == of_iterations(2, 4, 6) and not lock.exists()
    third = tiny_solver(tmp_path)
    third.snapshot()
    assert lock.exists()
    del third
    assert not lock.exists()
    fourth = tiny_solver(tmp_path)
    fourth.solve()
    assert not lock.exists()


def test_a_python_program_gets_a_warning_and_goes_on(tmp_path, caplog):
    with other_process(tmp_path / "tiny") as owner:
        leftover = tmp_path / ".tiny_iter_4.caffemodel.0123abcd.tmp"
        leftover.touch()
        solver = tiny_solver(tmp_path, "snapshot: 2")
        solver.step(4)
        solver.close()
        assert caplog.text.count(f"is in use by process {owner.pid} on ") == 1
        assert names(tmp_path) == sorted([leftover.name, *of_iterations(2, 4)])


def test_a_fork_neither_keeps_a_prefix_nor_gives_it_up(tmp_path):
    prefix = f"{tmp_path}/tiny"
    hold = prefixes.take(prefix)
    child = os.fork()
    if child == 0:
        del hold
        time.sleep(60)
        os._exit(0)
    try:
        time.sleep(0.1)
        assert hold.owner is None and prefixes.path_of(prefix).exists()
        del hold
        with other_process(prefix):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("missing", ["locks", "permission", "space"])
def test_file_systems_without_locks_work(tmp_path, monkeypatch, caplog, missing):
    import fcntl

    def fail(number):
        def function(*args):
            raise OSError(number, os.strerror(number))

        return function

    if missing == "locks":
        monkeypatch.setattr(fcntl, "lockf", fail(errno.ENOLCK))
    elif missing == "permission":
        real = os.open
        monkeypatch.setattr(
            prefixes.os,
            "open",
            lambda path, *args: (
                fail(errno.EACCES)() if str(path).endswith(".lock") else real(path, *args)
            ),
        )
    else:
        monkeypatch.setattr(prefixes.os, "pwrite", fail(errno.ENOSPC))
    (tmp_path / ".tiny_iter_4.caffemodel.0123abcd.tmp").touch()
    run(tmp_path)
    assert names(tmp_path) == sorted(["solver.prototxt", *of_iterations(4, 8)])
    assert "in use" not in caplog.text
