"""Running programs as their users would: on one rank or several, with everything they print."""

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
TIMEOUT_SECONDS = 240
ENVIRONMENT = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **mpirun.ENVIRONMENT}


def find_mpirun() -> str | None:
    """Return the mpirun beside the running Python, or the one on the path."""
    beside = BIN / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


@dataclass(frozen=True)
class Finished:
    """A job that has ended: its exit status, its output, and its time."""

    status: int
    output: str
    seconds: float


class Job:
    """A command that has been started on several ranks; with 0 ranks, without mpirun.

    There may be more ranks than cores.  ``variables`` of the environment are added or, with None,
    removed.
    """

    def __init__(
        self,
        command: Sequence[object],
        folder: Path | str | None = None,
        ranks: int = 0,
        **variables: str | None,
    ):
        self._started = time.monotonic()
        launcher = find_mpirun() if ranks else "none"
        assert launcher is not None, "these tests need mpirun: pip install '.[mpi]'"
        under = [launcher, "-n", str(ranks)] if ranks else []
        wanted = {**os.environ, **ENVIRONMENT, **variables}
        self.process = subprocess.Popen(
            [*under, *map(str, command)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
            env={name: value for name, value in wanted.items() if value is not None},
        )

    def finish(self, timeout: float = TIMEOUT_SECONDS) -> Finished:
        """Wait for the end; a job that takes longer is killed, and the test fails."""
        try:
            output, _ = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            output, _ = self.process.communicate()
            pytest.fail(f"the job had not ended after {timeout:g} s; it printed:\n{output}")
        return Finished(self.process.returncode, output, time.monotonic() - self._started)

    def kill(self) -> None:
        """End the command; mpirun then ends its ranks."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


def run(
    command: Sequence[object],
    folder: Path | str | None = None,
    ranks: int = 1,
    expect_failure: bool = False,
    **variables: str | None,
) -> str:
    """Run a command, on several ranks under mpirun; return what it printed.

    The test fails when the command fails, or does not although it should.
    """
    finished = Job(command, folder, ranks if ranks > 1 else 0, **variables).finish()
    assert (finished.status != 0) == expect_failure, finished.output[-4000:]
    return finished.output


def python(code: str, *arguments: object, **variables: str | None) -> Job:
    """Start Python code in a process of its own."""
    return Job([sys.executable, "-c", code, *arguments], **variables)
