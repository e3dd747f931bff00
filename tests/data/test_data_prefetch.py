"""Prefetching: order, odd shapes, errors, and threads that go away."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from pycaffe_dist.data.prefetch import Buffer, Loader, Prefetcher
from pycaffe_dist.errors import DataError


class _Numbers(Loader):
    """Batch b holds b; batches in ``odd`` are longer, batch ``bad`` cannot be read."""

    dtype = np.dtype(np.float32)

    def __init__(self, odd=(), bad=-1):
        self.odd, self.bad = odd, bad
        self.closed = False
        self.threads: set[int] = set()

    def top_shapes(self):
        return [(2, 3), (2,)]

    def load(self, number, tops):
        self.threads.add(threading.get_ident())
        for i in range(len(tops[0]) // 2):
            if number + i == self.bad:
                raise DataError("record 7 is bad")
            if number + i in self.odd:
                return i
            for top in tops:
                top[2 * i : 2 * i + 2] = number + i
        return len(tops[0]) // 2

    def buffers(self):
        return [Buffer(shape, self.dtype) for shape in self.top_shapes()]

    def load_other(self, number):
        return [np.full((2, 5), number, np.float32), np.full(2, number, np.float32)]

    def close(self):
        self.closed = True


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("depth", [1, 2, 3, 7, None])
@pytest.mark.parametrize("first", [0, 5])
def test_batches_come_in_order_and_stay_valid(depth, first, threads):
    prefetcher = Prefetcher([_Numbers() for _ in range(threads)], depth, first)
    for number in range(first, first + 50):
        data, label = prefetcher.next()
        if number % 10 == 0:
            time.sleep(0.002)
        assert (data == number).all() and (label == number).all()
        assert prefetcher.number == number + 1
    prefetcher.close()


@pytest.mark.parametrize("depth", [1, 3, None])
def test_batches_of_another_shape_keep_their_place(depth):
    odd = (0, 4, 5, 11)
    prefetcher = Prefetcher([_Numbers(odd)], depth)
    for number in range(40):
        data, _ = prefetcher.next()
        assert data.shape == ((2, 5) if number in odd else (2, 3)) and (data == number).all()
    prefetcher.close()


def test_error_arrives_at_its_place_and_stays(new_threads):
    prefetcher = Prefetcher([_Numbers(bad=6)], 1)
    for _ in range(6):
        prefetcher.next()
    for _ in range(2):
        with pytest.raises(DataError, match="record 7 is bad"):
            prefetcher.next()
    prefetcher.close()
    assert not new_threads()


def test_nothing_starts_before_the_first_batch_and_close_ends_all(new_threads):
    loader = _Numbers()
    prefetcher = Prefetcher([loader], 2)
    assert not new_threads()
    prefetcher.next()
    assert new_threads() == ["pcaffe-reader"]
    prefetcher.close()
    prefetcher.close()
    with pytest.raises(DataError, match="closed"):
        prefetcher.next()
    assert not new_threads() and loader.closed and threading.get_ident() not in loader.threads


def test_forgotten_prefetchers_leave_no_threads(new_threads):
    for _ in range(50):
        prefetcher = Prefetcher([_Numbers()], 3)
        prefetcher.next()
        cycle = [prefetcher]
        cycle.append(cycle)
    del prefetcher, cycle
    gc.collect()
    deadline = time.monotonic() + 30
    while new_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not new_threads()


def test_collector_does_not_wait_for_the_readers():
    prefetcher = Prefetcher([_Numbers(bad=2)], 2)
    loading, go_on = threading.Event(), threading.Event()
    loader = prefetcher._loaders[0]
    loader.load = lambda *args: (loading.set(), go_on.wait(60), 2)[2]
    prefetcher._start()
    loading.wait(60)
    readers = prefetcher._readers
    del prefetcher
    gc.collect()
    assert readers.stopped
    go_on.set()
    readers.join()


def test_time_waited_is_counted():
    loader = _Numbers()
    load = loader.load
    loader.load = lambda *args: (time.sleep(0.05), load(*args))[1]
    prefetcher = Prefetcher([loader], 1)
    prefetcher.next()
    assert 0.02 < prefetcher.seconds_waited < 5
    prefetcher.close()


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "1 / 0", "del prefetcher"])
def test_interpreter_exits_while_the_thread_runs(ending):
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
from test_data_prefetch import _Numbers
from pycaffe_dist.data.prefetch import Buffer, Prefetcher
prefetcher = Prefetcher([_Numbers()], 4)
prefetcher.next()
{ending}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert done.returncode == {"raise SystemExit(3)": 3, "1 / 0": 1}.get(ending, 0)
    assert b"Fatal" not in done.stderr and b"Exception ignored" not in done.stderr
