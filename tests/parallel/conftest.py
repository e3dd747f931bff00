"""Runs Python programs on several ranks, under the mpirun that belongs to this Python."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from launching import ENVIRONMENT

FOLDER = Path(__file__).parent
PROGRAMS = FOLDER / "programs"


def find_mpirun() -> str | None:
    """Return the mpirun beside the running Python, or the one on the path."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


@dataclass(frozen=True)
class Finished:
    """A job that has ended: exit status, everything that it printed, and how long it took."""

    status: int
    output: str
    seconds: float


class Job:
    """Python programs under mpirun; more ranks than cores are welcome."""

    def __init__(self, ranks: int, arguments: tuple[str, ...], environment: dict[str, str]):
        self._started = time.monotonic()
        mpirun = find_mpirun()
        assert mpirun is not None
        self.process = subprocess.Popen(
            [mpirun, "-n", str(ranks), sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
            env={
                **os.environ,
                **ENVIRONMENT,
                "PYTHONPATH": str(FOLDER),
                "OPENBLAS_NUM_THREADS": "1",
                **environment,
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


def _start(ranks: int, *arguments: object, environment: dict[str, str] | None = None) -> Job:
    program, *rest = map(str, arguments)
    if (PROGRAMS / program).exists():
        program = str(PROGRAMS / program)
    return Job(ranks, (program, *rest), environment or {})


@pytest.fixture(scope="session")
def start_job() -> Iterator[Callable[..., Job]]:
    """Return a function that starts a program of programs/ (or ``-m module``) on so many ranks."""
    assert find_mpirun() is not None, "these tests need mpirun: pip install '.[mpi]'"
    jobs: list[Job] = []

    def start(ranks: int, *arguments: object, **options: dict[str, str]) -> Job:
        jobs.append(_start(ranks, *arguments, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.process.poll() is None:
            job.kill()


@pytest.fixture(scope="session")
def mpirun(start_job: Callable[..., Job]) -> Callable[..., Finished]:
    """Return a function that runs a program of programs/ on so many ranks and returns its end."""

    def run(
        ranks: int,
        *arguments: object,
        timeout: float = 60,
        environment: dict[str, str] | None = None,
    ) -> Finished:
        return start_job(ranks, *arguments, environment=environment).finish(timeout)

    return run
