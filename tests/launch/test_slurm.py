"""The Slurm batch script with a fake sbatch: what it starts, and how it passes signals."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "train.slurm"

# A fake mpirun: prints its arguments, and ends when rank 0 would be asked to stop.
_MPIRUN = """#!/bin/bash
trap 'echo stopped; exit 3' USR1
echo "$@"
for ((i = 0; i < 500; i++)); do
  [ -e "$SLURM_SUBMIT_DIR/go" ] && exit 7
  sleep 0.02
done
"""


def _options() -> dict[str, str]:
    """Return sbatch's options in the script."""
    lines = re.findall(r"^#SBATCH --(\S+)", SCRIPT.read_text(), re.MULTILINE)
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.fixture
def submit(tmp_path):
    """Return a function that runs the script as sbatch does on the job's first node."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "mpirun").write_text(_MPIRUN)
    (folder / "mpirun").chmod(0o755)
    options = _options()
    tasks = int(options["nodes"]) * int(options["ntasks-per-node"])

    def start(*arguments: str) -> subprocess.Popen:
        # Slurm runs a copy of the script in the folder of the sbatch command.
        copy = tmp_path / "slurm_script"
        copy.write_text(SCRIPT.read_text())
        return subprocess.Popen(
            ["bash", str(copy), *arguments],
            env={
                "PATH": os.environ["PATH"],
                "SLURM_JOB_ID": "7",
                "SLURM_SUBMIT_DIR": str(tmp_path),
                "SLURM_NTASKS": str(tasks),
                "SLURM_NNODES": options["nodes"],
                "SLURM_PROCID": "0",
            },
            stdout=subprocess.PIPE,
            text=True,
            # The tests' own process may ignore SIGINT, which bash then could not trap.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return start


def test_as_many_ranks_are_started_as_slurm_has_tasks(submit, tmp_path):
    job = submit("--solver=a b.prototxt", "--global_batch")
    line = job.stdout.readline()
    expected = ["--bind-to", "none", "-n", "2", "pcaffe", "train", "--solver=a b.prototxt"]
    assert shlex.split(line.replace("a b", "'a b'")) == [*expected, "--global_batch"]
    (tmp_path / "go").touch()
    job.communicate()
    assert job.returncode == 7  # the run's own


def test_slurms_signal_becomes_the_one_that_mpirun_passes_on(submit):
    # "B:" has Slurm signal the script alone, some time before the job's limit.
    (word, name, seconds) = re.fullmatch(r"(B):(\w+)@(\d+)", _options()["signal"]).groups()
    assert word == "B" and int(seconds) >= 60
    job = submit("--solver=x")
    job.stdout.readline()
    job.send_signal(getattr(signal, f"SIG{name}"))
    assert job.communicate()[0] == "stopped\n"
    assert job.returncode == 3


def test_outside_of_a_job_the_script_shows_its_usage():
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", SCRIPT, "--solver=x"], env=environment, capture_output=True)
    assert done.returncode == 1 and b"submit this script with sbatch" in done.stderr
