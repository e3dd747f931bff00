"""Chains: loops in machine code, one after the other, on any number of threads."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest

from pycaffe_dist import threads
from pycaffe_dist.kernels import chains
from pycaffe_dist.kernels.ahead import compile_needs
from pycaffe_dist.kernels.chains import Chain, chained
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.dry_run import Needs
from pycaffe_dist.kernels.jit.codegen.chains import chain_kernels
from pycaffe_dist.threads import parallel_for, spread


@pytest.fixture(params=[1, 2, 5], autouse=True)
def thread_count(request):
    before = threads.thread_count()
    threads.set_threads(request.param)
    yield request.param
    threads.set_threads(before)


class Sizes(NamedTuple):
    first: int
    second: int


@jit
def count(begin, end, hits):
    for i in range(begin, end):
        hits[i] += 1


@jit
def double(begin, end, x, y):
    for i in range(begin, end):
        y[i] = 2 * x[i]


@jit
def mix(begin, end, out, grid, nothing, column, sizes, pair, single, wide, flag, unsigned):
    for i in range(begin, end):
        value = grid[i, 1, 2] + column[i] + sizes.first - sizes.second + pair[1]
        value += single * wide + unsigned
        out[i] = -value if flag else value


@jit
def fail(begin, end, hits):
    if hits[0] >= 0:
        raise ValueError


@jit
def many_reals(begin, end, out, a, b, c, d, e, f, g, h, i):
    out[0] = a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i


def calls(*loops):
    """Return the calls as `threads.Calls` has them, after each kernel has run once."""
    for kernel, n, args, _ in loops:
        kernel(0, n, *args)
    return [(spread, loop) for loop in loops]


def run_all(functions):
    for function in functions:
        function()


def test_every_index_runs_once_and_loops_follow_each_other():
    n = 1003
    hits = np.zeros(n, np.int64)
    arrays = [np.ones(n, np.float32) for _ in range(8)]
    loops = [(double, n, pair, 3) for pair in itertools.pairwise(arrays)]
    (chain,) = chained(calls((count, n, (hits,), 1), *loops, (count, n, (hits,), 5000)))
    hits[:] = 0
    for _ in range(300):
        for array in arrays[1:]:
            array[:] = 0
        chain()
        assert all((array == 2**k).all() for k, array in enumerate(arrays))
    assert (hits == 600).all()


def test_arguments_of_all_kinds_arrive():
    rng = np.random.default_rng(0)
    grid, matrix = rng.random((50, 2, 3)), rng.random((50, 7)).astype(np.float32)
    args = (
        *(np.zeros(50), grid, None, matrix[:, 3], Sizes(7, -5), (np.int32(-3), 11)),
        *(np.float32(0.1), 1e30, True, np.uint64(2**40)),
    )
    (chain,) = chained(calls((mix, 50, args, 4)))
    assert isinstance(chain.__self__, Chain)
    wanted = args[0].copy()
    assert wanted.any()
    args[0][:] = 0
    chain()
    np.testing.assert_array_equal(args[0], wanted)


def python(begin, end, hits):
    hits[begin:end] += 1


def test_what_has_no_machine_code_is_called():
    hits, out = np.zeros(9, np.int64), np.zeros(1)
    reals = (many_reals, 1, (out, *map(float, range(9))), 1)
    made = calls((count, 9, (hits,), 1), reals, (python, 9, (hits,), 1))
    functions = chained([*made, (np.add, (hits, 1, hits))])
    hits[:], out[:] = 0, 0
    run_all(functions)
    assert (hits == 3).all()
    assert out[0] == sum(i * (i + 1) for i in range(9))
    assert isinstance(functions[0].__self__, Chain)
    assert all(isinstance(function, functools.partial) for function in functions[1:])


def test_other_machines_make_the_calls_one_by_one(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert not chain_kernels()
    chains._code.cache_clear()
    hits = np.zeros(9, np.int64)
    run_all(chained(calls((count, 9, (hits,), 1))))
    chains._code.cache_clear()
    assert (hits == 2).all()


def test_a_failing_kernel_raises_and_the_next_one_runs():
    hits = np.full(64, -1, np.int64)
    (chain,) = chained(calls((fail, 64, (hits,), 1), (count, 64, (hits,), 1)))
    for _ in range(3):
        hits[:] = 5
        with pytest.raises(MemoryError, match="a kernel failed"):
            chain()
        hits[:] = -1
        chain()


def test_chains_and_loops_take_turns():
    hits = np.zeros(64, np.int64)
    (chain,) = chained(calls((count, 64, (hits,), 1)))
    hits[:] = 0
    for number in range(1, 500):
        chain()
        if number % 3:
            parallel_for(count, 64, hits)
        if number % 50 == 0:
            time.sleep(0.002)  # workers fall asleep
        assert (hits == number + number - number // 3).all()


def test_several_threads_run_chains():
    def run(found):
        hits = np.zeros(200, np.int64)
        (chain,) = chained(calls((count, 200, (hits,), 1), (count, 200, (hits,), 7)))
        hits[:] = 0
        for _ in range(300):
            chain()
        found.append((hits == 600).all())

    found: list[bool] = []
    callers = [threading.Thread(target=run, args=(found,)) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [True] * 3


def test_threads_end_and_idle_ones_use_no_core(thread_count):
    hits = np.zeros(64, np.int64)
    (chain,) = chained(calls((count, 64, (hits,), 1)))
    for _ in range(20):
        chain()
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1
    chain()
    workers = threads._pool.workers
    assert len(workers) == thread_count - 1
    threads.set_threads(thread_count + 1)
    for _ in range(200):
        names = [thread.name for thread in threading.enumerate()]
        if not any("pcaffe-kernel" in name for name in names):
            return
        time.sleep(0.05)
    raise AssertionError(names)


def test_they_are_compiled_ahead(monkeypatch):
    needs = Needs()
    monkeypatch.setattr("pycaffe_dist.kernels.ahead._groups", lambda *args: [])
    assert compile_needs(needs)
    assert set(chain_kernels()) <= set(needs.microkernels)
