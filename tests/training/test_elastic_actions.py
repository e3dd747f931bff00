"""What was asked for shortly before ranks were lost is asked for again."""

from __future__ import annotations

from types import SimpleNamespace

from pycaffe_dist.config import Action
from pycaffe_dist.training.elastic import KeptActions


def asked_again(iteration: int) -> Action:
    """Return the first action at an iteration after a loss; one was asked for at iteration 5."""
    given = [Action.NONE, Action.SNAPSHOT_AND_STOP]
    actions = KeptActions(lambda: given.pop(0) if given else Action.NONE)
    solver = SimpleNamespace(iteration=4)
    actions.follow(solver)
    assert solver.action_source() is Action.NONE
    solver.iteration = 5
    assert solver.action_source() is Action.SNAPSHOT_AND_STOP
    later = SimpleNamespace(iteration=iteration)
    actions.follow(later)
    found = later.action_source()
    assert later.action_source() is Action.NONE
    return found


def test_an_action_that_may_not_have_been_done_is_asked_for_again():
    assert [asked_again(iteration) for iteration in (5, 6)] == [Action.SNAPSHOT_AND_STOP] * 2


def test_an_action_that_was_done_is_not():
    assert asked_again(7) is Action.NONE
