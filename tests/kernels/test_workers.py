"""Worker processes that compile: they die without harm, and start again."""

from __future__ import annotations

import os
import time

import pytest

from pycaffe_dist.kernels import workers
from pycaffe_dist.kernels.workers import Worker, WorkerDied, run_all


@pytest.fixture
def worker():
    worker = Worker()
    yield worker
    worker.close()


def test_a_worker_runs_functions_in_its_own_process(worker):
    assert worker.run(abs, -3) == 3
    assert worker.run(os.getpid) == worker.run(os.getpid) != os.getpid()
    with pytest.raises(ValueError, match="invalid literal"):
        worker.run(int, "x")


def test_a_worker_that_dies_says_why_and_starts_again(worker):
    first = worker.run(os.getpid)
    with pytest.raises(WorkerDied, match="status -6"):
        worker.run(os.abort)
    assert worker.run(os.getpid) != first


def test_the_error_has_the_last_line_of_a_worker_that_died(worker):
    with pytest.raises(WorkerDied, match=r"Assertion .* failed"):
        worker.run(os.system, "echo 'Assertion `x < y` failed.' >&2; kill -9 $PPID")


def test_a_worker_without_work_ends(worker, monkeypatch):
    first = worker.run(os.getpid)
    process = worker._process
    process.stdin.close()
    assert process.wait(5) == 0
    assert worker.run(os.getpid) != first


def test_a_worker_that_ends_when_work_comes_starts_again(worker, monkeypatch):
    first = worker.run(os.getpid)
    started, process = Worker._started, worker._process

    def end_first(self):
        found = started(self)
        if found is process:  # as after a long time without work
            found.stdin.close()
            found.wait(5)
            found.stdin = open(os.devnull, "wb")  # noqa: SIM115
        return found

    monkeypatch.setattr(Worker, "_started", end_first)
    assert worker.run(os.getpid) != first


def test_without_processes_the_function_runs_here(worker, monkeypatch):
    def refuse(*args, **options):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(workers.subprocess, "Popen", refuse)
    assert worker.run(os.getpid) == os.getpid()


def test_all_tasks_run_even_if_some_fail():
    done, errors = [], []

    def task(worker, number):
        if number == 3:
            worker.run(os.abort)
        done.append((number, worker.run(abs, -number)))

    groups = [
        [lambda worker, n=number: task(worker, n) for number in group]
        for group in ((0, 1), (2, 3, 4), (5,))
    ]
    run_all(groups, errors.append, processes=2)
    assert sorted(done) == [(n, n) for n in (0, 1, 2, 4, 5)]
    assert [type(error) for error in errors if error] == [WorkerDied]
    assert len(errors) == 6


def test_workers_share_the_work():
    begin = time.monotonic()
    run_all([[lambda worker: worker.run(time.sleep, 1.0)] for _ in range(4)], lambda _: None, 4)
    assert time.monotonic() - begin < 3.5


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="there is no binding")
def test_a_process_that_is_bound_to_a_core_compiles_on_all(worker):
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("there is one core")
    os.sched_setaffinity(0, {min(before)})
    try:
        assert workers.host_cores() >= len(before)
        assert worker.run(os.sched_getaffinity, 0) >= before
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)
