"""Fixtures that run programs of programs/ on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kept_jobs import run_kept, start_program
from running import Finished, Job


@pytest.fixture(scope="session")
def start_job() -> Iterator[Callable[..., Job]]:
    """Return a function that starts a program of programs/ (or ``-m module``) on some ranks."""
    jobs: list[Job] = []

    def start(ranks: int, *words: object) -> Job:
        jobs.append(start_program(ranks, words))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.process.poll() is None:
            job.kill()


@pytest.fixture(scope="session")
def mpirun(start_job: Callable[..., Job]) -> Callable[..., Finished]:
    """Return a function that runs a program of programs/ on a number of ranks, to its end."""

    def run(ranks: int, *words: object, timeout: float = 60) -> Finished:
        return start_job(ranks, *words).finish(timeout)

    return run


@pytest.fixture(scope="session")
def kept_mpirun(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Finished]:
    """Return a function like mpirun's that keeps the ranks for the next program."""
    folder = tmp_path_factory.mktemp("kept")

    def run(ranks: int, *words: object, timeout: float = 60) -> Finished:
        return run_kept(ranks, words, folder, timeout)

    return run
