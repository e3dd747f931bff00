"""Spans on their way to the functions that follow a run."""

from __future__ import annotations

from pycaffe_dist import profiling
from pycaffe_dist.profiling import Kind, Profiler


def span(name):
    return (Kind.FORWARD, name, 0.0, 1.0, 0)


def test_every_follower_gets_the_spans_of_its_time():
    profiler, one, other = Profiler(), [], []
    assert profiler.record is None
    profiler.add(one.extend)
    profiler.record(span("a"))
    assert not one
    profiler.add(other.extend)
    profiler.record(span("b"))
    profiler.remove(one.extend)
    profiler.record(span("c"))
    profiler.hand_over()
    assert one == [span("a"), span("b")] and other == [span("b"), span("c")]
    profiler.remove(other.extend)
    assert profiler.record is None


def test_spans_that_nobody_takes_make_room(monkeypatch):
    monkeypatch.setattr(profiling, "_MOST_WAITING", 3)
    profiler, found = Profiler(), []
    profiler.add(found.extend)
    for name in "abcde":
        profiler.record(span(name))
    profiler.hand_over()
    assert found == [span(name) for name in "cde"]
