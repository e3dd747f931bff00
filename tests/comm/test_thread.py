"""The communication thread, with requests that the test completes by hand."""

from __future__ import annotations

import threading
import time

import pytest

from pycaffe_dist.comm import thread as communication
from pycaffe_dist.comm.tasks import Step
from pycaffe_dist.comm.thread import CommunicationThread
from pycaffe_dist.errors import ClusterError


class Request:
    """A message that arrives when the test marks it."""

    def __init__(self):
        self.arrived = False

    def Get_status(self) -> bool:
        return self.arrived


def all_arrived(requests) -> bool:
    return all(request.arrived for request in requests)


@pytest.fixture
def thread():
    thread = CommunicationThread(all_arrived, stall_seconds=0.05, who="rank 7")
    yield thread
    thread.close(timeout=5)


def waiting_for(*requests, result=None, started=None):
    """A task with one step per request, which notes that it has started."""
    if started is not None:
        started.set()
    for request in requests:
        yield Step([request], (3,))
    return result


def eventually(condition) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(1e-3)
    return condition()


def test_a_task_goes_on_when_its_messages_have_arrived(thread):
    first, second = Request(), Request()
    handle = thread.submit(waiting_for(first, second, result="mean"), "task")
    with pytest.raises(TimeoutError, match="task has not ended after"):
        handle.wait(0.01)
    first.arrived = True
    with pytest.raises(TimeoutError):
        handle.wait(0.01)
    second.arrived = True
    assert handle.wait(5) == "mean"
    assert handle.done
    assert handle.exception is None


def test_a_task_without_messages_ends_at_once(thread):
    assert thread.submit(waiting_for(result=3), "task").wait(5) == 3
    assert thread.call(lambda: 4, "call").wait(5) == 4


def test_a_tasks_exception_reaches_only_the_thread_that_waits_for_it(thread):
    def failing():
        yield Step([])
        raise ValueError("no sum")

    request = Request()
    other = thread.submit(waiting_for(request, result=1), "other")
    handle = thread.submit(failing(), "task")
    with pytest.raises(ValueError, match="no sum"):
        handle.wait(5)
    assert isinstance(handle.exception, ValueError)
    request.arrived = True
    assert other.wait(5) == 1


def test_an_error_of_mpi_reaches_the_waiting_thread():
    def broken(requests):
        raise RuntimeError("truncated")

    thread = CommunicationThread(broken)
    with pytest.raises(RuntimeError, match="truncated"):
        thread.submit(waiting_for(Request()), "task").wait(5)
    thread.close(5)


def test_when_the_thread_itself_fails_all_callers_get_the_error(thread, monkeypatch):
    request = Request()
    handle = thread.submit(waiting_for(request), "before")

    def fail(job):
        raise RuntimeError("a bug in the thread")

    monkeypatch.setattr(thread, "_has_room", fail)
    thread.submit(waiting_for(), "task", order=0)
    with pytest.raises(RuntimeError, match="a bug in the thread"):
        handle.wait(5)
    with pytest.raises(RuntimeError, match="a bug in the thread"):
        thread.submit(waiting_for(), "after").wait(5)


def test_lower_orders_start_first_and_only_a_few_at_a_time(thread):
    count = communication.MOST_LIVE + 2
    large = communication.MOST_LIVE_BYTES
    requests = [Request() for _ in range(count)]
    started = [threading.Event() for _ in range(count)]
    handles = [
        thread.submit(
            waiting_for(requests[order], started=started[order]), "task", order=order, nbytes=large
        )
        for order in range(count)
    ]
    assert eventually(lambda: all(event.is_set() for event in started[: communication.MOST_LIVE]))
    time.sleep(0.01)
    assert not any(event.is_set() for event in started[communication.MOST_LIVE :])
    requests[1].arrived = True
    assert started[communication.MOST_LIVE].wait(5)
    for request in requests:
        request.arrived = True
    for handle in handles:
        handle.wait(5)


def test_small_tasks_do_not_wait_for_others(thread):
    count = 3 * communication.MOST_LIVE
    requests = [Request() for _ in range(count)]
    started = [threading.Event() for _ in range(count)]
    for order in range(count):
        task = waiting_for(requests[order], started=started[order])
        thread.submit(task, "task", order=order, nbytes=100)
    assert all(event.wait(5) for event in started)
    for request in requests:
        request.arrived = True


def test_the_lowest_order_starts_even_when_higher_ones_fill_the_thread(thread):
    """Two ranks with different orders of gradients must not wait for each other."""
    large = communication.MOST_LIVE_BYTES
    requests = [Request() for _ in range(8)]
    for order in range(1, 6):
        thread.submit(waiting_for(requests[order]), "task", order=order, nbytes=large)
    started = threading.Event()
    lowest = thread.submit(waiting_for(requests[0], started=started), "task", order=0, nbytes=large)
    assert started.wait(5)
    requests[0].arrived = True
    lowest.wait(5)
    # Orders may start again for the next net.
    for request in requests:
        request.arrived = True
    thread.restart_order()
    assert thread.submit(waiting_for(result="again"), "task", order=0).wait(5) == "again"


def test_the_most_urgent_waiting_task_starts_first(thread):
    large = communication.MOST_LIVE_BYTES
    requests = [Request() for _ in range(7)]
    began: list[int] = []

    def task(order):
        began.append(order)
        yield Step([requests[order]], (3,))

    urgency = dict(enumerate((0, 0, 0, 5, 2, 4, 3)))
    handles = [
        thread.submit(task(order), "task", order=order, nbytes=large, priority=urgency[order])
        for order in range(7)
    ]
    assert eventually(lambda: began == [0, 1, 2])
    requests[1].arrived = True
    assert eventually(lambda: began == [0, 1, 2, 4])
    requests[2].arrived = True
    assert eventually(lambda: began == [0, 1, 2, 4, 6])
    # When all earlier ones have ended, the lowest order starts, urgent or not.
    requests[0].arrived = True
    assert eventually(lambda: 3 in began)
    for request in requests:
        request.arrived = True
    for handle in handles:
        handle.wait(5)


def test_a_small_urgent_task_does_not_wait_for_large_ones(thread):
    requests = [Request() for _ in range(communication.MOST_LIVE + 2)]
    for order in range(communication.MOST_LIVE):
        thread.submit(
            waiting_for(requests[order]),
            "task",
            order=order,
            nbytes=communication.MOST_LIVE_BYTES,
            priority=9,
        )
    started = {priority: threading.Event() for priority in (9, 1)}
    for order, (priority, event) in enumerate(started.items(), communication.MOST_LIVE):
        task = waiting_for(requests[order], started=event)
        thread.submit(task, "task", order=order, nbytes=100, priority=priority)
    assert started[1].wait(5)
    assert not started[9].is_set()
    for request in requests:
        request.arrived = True


def test_overlapping_exchanges_are_timed_once(thread):
    ended = []
    thread.record = ended.append
    requests = [Request(), Request()]
    handles = [
        thread.submit(waiting_for(request), f"exchange {order}", order=order)
        for order, request in enumerate(requests)
    ]
    thread.submit(waiting_for(), "no exchange").wait(5)
    time.sleep(0.02)
    for request, handle in zip(requests, handles):
        request.arrived = True
        handle.wait(5)
    assert eventually(lambda: len(ended) == 2)
    seconds = thread.exchange_seconds()
    assert seconds == thread.exchange_seconds()
    assert [name for _, name, *_ in ended] == ["exchange 0", "exchange 1"]
    assert seconds == max(span[3] for span in ended) - min(span[2] for span in ended)


def test_a_stalled_task_names_the_ranks_that_it_waits_for(thread, capfd):
    there, missing = Request(), Request()
    there.arrived = True

    def task():
        yield Step([there, missing, missing], (1, 2, 5))

    handle = thread.submit(task(), "exchange of conv1[0]")
    with pytest.raises(TimeoutError):
        handle.wait(0.3)
    missing.arrived = True
    handle.wait(5)
    said = capfd.readouterr().err
    assert said.count("exchange of conv1[0]") == 1
    assert said.startswith("pcaffe: rank 7: ")
    assert said.rstrip().endswith("for ranks 2, 5")


def test_a_task_that_is_stalled_for_too_long_fails():
    thread = CommunicationThread(all_arrived, stall_seconds=1e9, shutdown_seconds=0.05)
    missing = Request()
    patient = thread.submit(waiting_for(missing, result="in time"), "leaving", patient=True)
    handle = thread.submit(waiting_for(missing), "exchange of conv1[0]")
    with pytest.raises(ClusterError, match=r"conv1\[0\] has waited 0 s for rank 3: the run ends"):
        handle.wait(5)
    missing.arrived = True
    assert patient.wait(5) == "in time"
    thread.close(timeout=5)


def test_an_idle_thread_takes_no_time(thread):
    thread.call(lambda: None, "call").wait(5)
    clock = time.pthread_getcpuclockid(thread._thread.ident)
    time.sleep(0.05)
    before = time.clock_gettime(clock)
    time.sleep(0.3)
    # Polling the messages now and then would take ten times as long.
    assert time.clock_gettime(clock) - before < 1e-3


def test_closing_first_finishes_the_tasks_and_refuses_new_ones(thread):
    request = Request()
    handle = thread.submit(waiting_for(request, result="done"), "task")
    threading.Timer(0.05, lambda: setattr(request, "arrived", True)).start()
    thread.close(timeout=5)
    assert handle.wait(0) == "done"
    with pytest.raises(ClusterError, match="has ended"):
        thread.submit(waiting_for(), "late")
