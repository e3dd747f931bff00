"""Running programs, and pcaffe itself, on several ranks, for the tests of this folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pycaffe_dist.launch import mpirun

BIN = Path(sys.executable).parent
FOLDER = Path(__file__).parent
PROGRAMS = FOLDER / "programs"
TIMEOUT_SECONDS = 240
ENVIRONMENT = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **mpirun.ENVIRONMENT}


def find_mpirun() -> str | None:
    """Return the mpirun beside the running Python, or the one on the path."""
    beside = BIN / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


def program_words(words: Sequence[object]) -> list[str]:
    """Return a program and its arguments; one of programs/ may be given by its name alone."""
    program, *rest = map(str, words)
    return [str(PROGRAMS / program) if (PROGRAMS / program).exists() else program, *rest]


@dataclass(frozen=True)
class Finished:
    """A job that has ended: exit status, everything that it printed, and how long it took."""

    status: int
    output: str
    seconds: float


class Job:
    """A Python program on several ranks, more than cores if need be; with 0, without mpirun."""

    def __init__(self, ranks: int, words: Sequence[object]):
        self._started = time.monotonic()
        launcher = find_mpirun()
        assert launcher is not None, "these tests need mpirun: pip install '.[mpi]'"
        under = [launcher, "-n", str(ranks)] if ranks else []
        self.process = subprocess.Popen(
            [*under, sys.executable, *program_words(words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
            env={
                **os.environ,
                **ENVIRONMENT,
                "PYTHONPATH": f"{FOLDER}{os.pathsep}{FOLDER.parent}",
                "OPENBLAS_NUM_THREADS": "1",
            },
        )

    def finish(self, timeout: float) -> Finished:
        """Wait for the end; a job that takes longer is killed, and the test fails."""
        try:
            output, _ = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            output, _ = self.process.communicate()
            pytest.fail(f"the job had not ended after {timeout:g} s; it printed:\n{output}")
        return Finished(self.process.returncode, output, time.monotonic() - self._started)

    def kill(self) -> None:
        """End mpirun, which ends its ranks."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


def run(ranks: int, arguments: list[str], folder: Path, expect_failure: bool = False) -> str:
    """Run ``pcaffe arguments`` on some ranks in a folder; return what it printed."""
    command = ["pcaffe", *arguments]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks), *command]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert (done.returncode != 0) == expect_failure, done.stdout[-4000:]
    return done.stdout
