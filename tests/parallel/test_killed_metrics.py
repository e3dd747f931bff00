"""The files about a run of four ranks that is killed: readable, and right once it was resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from digits import DATA, SOLVER, write_digits
from event_files import read_events
from running import Job, find_mpirun

from pycaffe_dist.training.metrics_file import read_records

RANKS = 4
KILLED = 25  # the iteration
MARK = b"\0OMPI_COMM_WORLD_RANK="
NET = (
    DATA % 5
    + """
layer { name: 'ip' type: 'InnerProduct' bottom: 'data' top: 'ip'
  inner_product_param { num_output: 10 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 'label' top: 'loss' }
"""
)


def start(folder: Path, name: str, iterations: int, *flags: str) -> Job:
    """Start a run whose snapshots, metrics and files for TensorBoard have that name."""
    solver = SOLVER % ("net.prototxt", iterations, name) + "snapshot: 10"
    (folder / f"{name}.solver").write_text(solver)
    words = ["train", f"--solver={name}.solver", "--exchange=allreduce", "--layer_metrics"]
    words += [f"--metrics={name}.jsonl", f"--tensorboard={name}_board", f"--timeline={name}.json"]
    line = [find_mpirun(), "-n", RANKS, sys.executable, "-m", "pycaffe_dist", *words, *flags]
    return Job(line, folder, RUN=str(folder))


def processes(folder: Path) -> dict[int, bytes]:
    """Return the environments of the ranks that were started in a folder, by their ids."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = b"\0" + (process / "environ").read_bytes()
            if f"\0RUN={folder}\0".encode() in variables and MARK in variables:
                found[int(process.name)] = variables
    return found


def kill(job: Job, folder: Path, victim: str) -> None:
    """Kill a rank or mpirun in an iteration after `KILLED`; return when all ranks have ended."""
    for line in job.process.stdout:
        if (found := re.search(r"Iteration (\d+) \(", line)) and int(found[1]) >= KILLED:
            break
    if victim == "mpirun":
        job.process.kill()
    else:
        mark = MARK + victim[-1].encode() + b"\0"
        (rank,) = (id for id, variables in processes(folder).items() if mark in variables)
        os.kill(rank, signal.SIGKILL)
    job.process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while left := processes(folder):
        if time.monotonic() > deadline:
            for id in left:
                os.kill(id, signal.SIGKILL)
            pytest.fail(f"{len(left)} ranks went on for a minute after the kill of {victim}")
        time.sleep(0.1)


def losses(path: Path) -> dict[int, float]:
    """Return the losses of metrics, of which there must be one for each iteration."""
    shown = [record for record in read_records(str(path)) if record["kind"] == "train"]
    assert [record["iteration"] for record in shown] == list(range(len(shown)))
    return {record["iteration"]: record["loss"] for record in shown}


def events(folder: Path) -> dict[int, float]:
    """Return TensorBoard's losses: a file's beginning replaces the steps from there on."""
    found: dict[int, float] = {}
    for event in read_events(folder):
        if event.HasField("session_log"):
            found = {step: loss for step, loss in found.items() if step < event.step}
        for value in event.summary.value:
            if value.tag == "train/loss":
                assert event.step not in found
                found[event.step] = value.simple_value
    return found


@pytest.mark.long
@pytest.mark.parametrize("victim", ["mpirun", "rank 0", "rank 2"])
def test_files_of_a_killed_run_can_be_read_and_continued(tmp_path, victim):
    write_digits(tmp_path, 200)
    (tmp_path / "net.prototxt").write_text(NET)
    kill(start(tmp_path, "killed", 10**6), tmp_path, victim)
    before, shown = losses(tmp_path / "killed.jsonl"), events(tmp_path / "killed_board")
    assert len(before) >= KILLED
    # The last seconds may be missing.
    assert list(shown) == list(range(len(shown)))
    assert shown == pytest.approx({step: before[step] for step in shown}, rel=1e-6)
    assert not (tmp_path / "killed.json").exists()

    end = len(before) + 5
    for name, flags in (("killed", ["--snapshot=latest"]), ("whole", [])):
        finished = start(tmp_path, name, end, *flags).finish()
        assert finished.status == 0, finished.output[-4000:]
    whole = losses(tmp_path / "whole.jsonl")
    assert losses(tmp_path / "killed.jsonl") == whole and len(whole) == end + 1
    assert events(tmp_path / "killed_board") == pytest.approx(whole, rel=1e-6)
    spans = json.loads((tmp_path / "killed.json").read_text())["traceEvents"]
    assert {span["pid"] for span in spans} == set(range(RANKS))
