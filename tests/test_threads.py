"""Threads: every index runs once, errors surface, and any thread may call."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from pycaffe_dist import threads
from pycaffe_dist.errors import DeviceError, UsageError
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.jit.codegen.waiting import swap_function
from pycaffe_dist.threads import parallel_for, set_threads


@pytest.fixture(params=[1, 2, 5], autouse=True)
def thread_count(request):
    before = threads.thread_count()
    threads.wait_awake(swap_function)
    set_threads(request.param)
    yield request.param
    set_threads(before)


def count(begin, end, hits):
    for i in range(begin, end):
        hits[i] += 1


@pytest.mark.parametrize("n", [0, 1, 2, 7, 1000])
@pytest.mark.parametrize("grain", [1, 3, 5000])
def test_every_index_runs_once(n, grain):
    hits = np.zeros(n, int)
    for _ in range(20):
        parallel_for(count, n, hits, grain=grain)
    assert (hits == 20).all()


@jit
def count_without_lock(begin, end, hits):
    for i in range(begin, end):
        hits[i] += 1


def test_a_loop_ends_after_its_last_chunk():
    """Also if a worker that came too late for a chunk leaves before one that computes."""
    hits = np.zeros(64, int)
    for loop in range(1, 4000):
        parallel_for(count_without_lock, len(hits), hits)
        assert (hits == loop).all()


def test_too_many_threads_for_the_system_give_a_one_line_error(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    set_threads(9)
    with pytest.raises(DeviceError, match=r"does not let this process have 9 threads .*--threads"):
        parallel_for(count, 100, np.zeros(100, int))


def test_threads_without_machine_code_to_wait_in_sleep(monkeypatch, thread_count):
    monkeypatch.setattr(threads, "_make_swap", None)
    set_threads(thread_count + 1)  # new ones
    test_every_index_runs_once(1000, 1)


def test_an_exception_surfaces_and_the_pool_lives_on():
    def fail(begin, end):
        if begin == 0:
            raise ValueError("chunk failed")

    for _ in range(3):
        with pytest.raises(ValueError, match="chunk failed"):
            parallel_for(fail, 100)
    test_every_index_runs_once(50, 1)


def test_several_threads_and_nested_loops_share_the_pool():
    hits = np.zeros(64, int)

    def nested(begin, end):
        for i in range(begin, end):
            parallel_for(count, 8, hits[8 * i : 8 * i + 8])

    def call():
        for _ in range(10):
            parallel_for(nested, 8)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    # Several callers' increments of one element may race, but every caller ran all of them.
    assert hits.min() >= 10


def test_chunks_run_on_all_threads(thread_count):
    seen = set()

    def slow(begin, end):
        time.sleep(0.005)
        seen.add(threading.get_ident())

    parallel_for(slow, 8 * thread_count)
    assert len(seen) == thread_count


def test_a_forked_child_gets_its_own_threads():
    hits = np.zeros(10, int)
    parallel_for(count, 10, hits)
    child = os.fork()
    if child == 0:
        parallel_for(count, 10, hits)
        os._exit(int(hits.sum() != 20))
    assert os.waitpid(child, 0)[1] == 0


def test_a_number_of_threads_below_one_is_refused():
    with pytest.raises(UsageError, match="at least 1, found 0"):
        set_threads(0)
