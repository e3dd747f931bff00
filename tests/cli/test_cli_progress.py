"""The text that says how far training has come."""

from __future__ import annotations

import collections
from types import SimpleNamespace

import pytest

from pycaffe_dist.cli import progress
from pycaffe_dist.launch import messages


class Run:
    """A solver that takes ``seconds`` for an iteration of 384 images, on a clock of its own."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.now = 50.0
        self.iteration = 10
        self.data = SimpleNamespace(seconds_waited=0.0)
        self.net = SimpleNamespace(layers=[self.data, SimpleNamespace(seconds_waited=0.0)])
        self.engine = SimpleNamespace(seconds_waited=0.0)
        self.cluster = SimpleNamespace(rank=rank, size=size)
        self.param = SimpleNamespace(max_iter=1000)
        self.losses = collections.deque([2.0])
        self.effective_batch = 384

    @property
    def state(self) -> SimpleNamespace:
        mean = sum(self.losses) / max(1, len(self.losses))
        return SimpleNamespace(losses=SimpleNamespace(recent=self.losses, mean=mean))

    def go_on(self, shown, iterations: int, seconds: float, data: float = 0, gradients: float = 0):
        for _ in range(iterations):
            self.now += seconds
            self.iteration += 1
            self.data.seconds_waited += data * seconds
            self.engine.seconds_waited += gradients * seconds
            shown(self)


@pytest.fixture
def start(monkeypatch):
    """Return a function that makes a run, its Progress, and the texts that this shows."""

    def start(**settings) -> tuple[Run, progress.Progress, list[str]]:
        run, texts = Run(**settings), []
        monkeypatch.setattr(progress.time, "monotonic", lambda: run.now)
        monkeypatch.setattr(progress.log, "status", texts.append)
        return run, progress.Progress(), texts

    monkeypatch.delenv(messages.VARIABLE, raising=False)
    return start


def test_it_shows_iterations_loss_speed_and_the_time_left(start):
    run, shown, texts = start()
    with shown:
        run.go_on(shown, 41, seconds=0.25)
    assert texts[-2] == "51/1000 iterations, loss 2, 1536 images/s, 0:03:57 left"
    assert len(texts) == 21, "twice a second"
    assert texts[-1] == "", "the line goes when the run ends"


def test_it_shows_the_share_of_waiting(start):
    run, shown, texts = start(size=2)
    run.go_on(shown, 9, seconds=0.5, data=0.12, gradients=0.3)
    assert texts[-1].endswith(" left, waiting for data 12 %, waiting for gradients 30 %")
    run.go_on(shown, 9, seconds=0.5)
    assert "waiting" not in texts[-1]


def test_the_speed_follows_changes_and_the_time_left_is_a_mean(start):
    run, shown, texts = start()
    run.go_on(shown, 100, seconds=0.5)
    run.go_on(shown, 100, seconds=1.0)
    assert "384 images/s" in texts[-1]
    # The first of 200 iterations is not measured: 99 of 0.5 s and 100 of 1 s, and 790 are left.
    assert " 0:09:53 left" in texts[-1]


def test_a_run_that_goes_back_is_measured_anew(start):
    run, shown, texts = start()
    run.go_on(shown, 5, seconds=0.5)
    run.iteration = 3
    run.go_on(shown, 3, seconds=0.5)
    assert texts[-1].startswith("6/1000 iterations, loss 2, 768 images/s, 0:08:17 left")


def test_other_ranks_show_nothing(start):
    run, shown, texts = start(rank=1)
    with shown:
        run.go_on(shown, 5, seconds=1)
    assert texts == []


def test_the_launcher_gets_the_text_instead(start, monkeypatch):
    run, shown, texts = start()
    told = []
    monkeypatch.setattr(progress.messages, "report", lambda *message: told.append(message) or True)
    run.go_on(shown, 3, seconds=1)
    assert told[-1] == (messages.PROGRESS, "13/1000 iterations, loss 2, 384 images/s, 0:16:27 left")
    assert texts == []


def test_a_counter_shows_its_units_per_second_and_the_time_left(monkeypatch):
    now, texts = 50.0, []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    monkeypatch.setattr(progress.log, "status", texts.append)
    with progress.Counter(600, "images") as counter:
        for _ in range(20):
            now += 0.25
            counter.update(5)
    assert len(texts) == 11
    assert texts[-2:] == ["100/600 images, 20 images/s, 0:00:25 left", ""]
