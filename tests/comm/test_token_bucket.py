"""The limit of a rank's sending rate, and the order of sending under it."""

from __future__ import annotations

import threading

import pytest

from pycaffe_dist.comm.tasks import Step
from pycaffe_dist.comm.thread import CommunicationThread
from pycaffe_dist.comm.token_bucket import Pace


@pytest.mark.parametrize("nbytes", [10, 1000, 50_000])
def test_the_mean_rate_does_not_depend_on_the_size_of_messages(nbytes):
    pace = Pace(10_000)
    sent, ticks = 0, 100_000
    for tick in range(ticks):
        if pace.allows(tick * 1e-3):
            pace.take(nbytes)
            sent += nbytes
    assert sent == pytest.approx(ticks * 1e-3 * 10_000, rel=0.06)


def test_no_burst_follows_a_pause():
    pace = Pace(10_000)
    pace.allows(0.0)
    sent = 0
    while pace.allows(100.0):
        pace.take(10)
        sent += 10
    assert sent <= 0.05 * 10_000


def test_without_a_limit_everything_may_start():
    pace = Pace()
    pace.take(1e12)
    assert pace.allows(0.0)


@pytest.mark.parametrize("ordered", [True, False])
def test_waiting_messages_are_sent_by_priority(ordered):
    """The lowest order still goes first: other ranks may wait for it."""
    thread = CommunicationThread(lambda requests: True, pace=Pace(100_000))
    started: list[int] = []

    def task(number: int):
        started.append(number)
        yield Step([], nbytes=4000)

    gate = threading.Event()
    thread.call(gate.wait, "until all are submitted")
    priorities = [0, 5, 3, 4, 1, 2]
    handles = [
        thread.submit(
            task(number),
            str(number),
            order=number if ordered else None,
            priority=priority,
            paced=True,
        )
        for number, priority in enumerate(priorities)
    ]
    gate.set()
    for handle in handles:
        handle.wait(10)
    thread.close(5)
    assert started[0] == 0
    assert sorted(started) == list(range(6))
    if not ordered:
        assert started == [0, 4, 5, 2, 3, 1]


def test_a_watch_runs_until_it_ends():
    looks: list[float] = []
    thread = CommunicationThread(lambda requests: True)

    def look(now: float) -> bool:
        looks.append(now)
        return False

    thread.watch("messages", look).wait(5)
    while len(looks) < 3:
        pass
    thread.watch("messages", None).wait(5)
    before = len(looks)
    thread.call(lambda: None, "later").wait(5)
    assert len(looks) <= before
    thread.close(5)


def test_an_error_in_a_watch_reaches_the_caller():
    thread = CommunicationThread(lambda requests: True)

    def look(now: float) -> bool:
        raise ValueError("what a message")

    with pytest.raises(ValueError, match="what a message"):
        thread.watch("messages", look).wait(5)
        thread.call(lambda: None, "later").wait(5)
