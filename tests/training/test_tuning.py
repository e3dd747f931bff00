"""The exchange plan that a run keeps, with a solver whose iterations take given times."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tiny import tiny_solver

from pycaffe_dist.comm.cluster import LocalCluster
from pycaffe_dist.profiling import Kind, Profiler
from pycaffe_dist.solvers.callbacks import Callbacks
from pycaffe_dist.solvers.local_engine import LocalEngine
from pycaffe_dist.training.tuning import TunableEngine, Tuning

LAYER_SECONDS = 1 / 64
TIMED = 3  # iterations, of which the first one warms up


class Undecided(LocalEngine, TunableEngine):
    """Finds one plan per number in ``plans``; says what it was told."""

    def __init__(self, plans: list[float]):
        super().__init__()
        self.plans, self.plan = plans, -1
        self.apart, self.plan_is_fixed = False, False

    @property
    def can_revise(self):
        return not self.plan_is_fixed

    def keep_apart(self, apart):
        self.apart = apart

    def revise(self, parameters, times):
        assert (times.forward, times.backward) == ((LAYER_SECONDS / 2,), (LAYER_SECONDS / 2,))
        self.plan = 0
        return len(self.plans)

    def use_plan(self, number, parameters, words=""):
        self.plan = number

    def fix_plan(self):
        self.plan_is_fixed = True
        return b""


class FakeSolver:
    """With plan n an iteration takes ``plans[n]`` seconds besides the layer's time."""

    by_hand = False

    def __init__(self, plans: list[float]):
        self.now = 0.0
        self.engine, self.cluster, self.profiler = Undecided(plans), LocalCluster(), Profiler()
        self.net = SimpleNamespace(layer_names=["ip"], nodes=["ip"], parameters=[])
        self.callbacks = Callbacks()
        Tuning().follow(self)
        self.call(self.callbacks.after_start)

    def call(self, callbacks):
        for callback in callbacks:
            callback(self)

    def profile(self, record, wanted=True):
        (self.profiler.add if wanted else self.profiler.remove)(record)

    def finish_updates(self):
        pass

    def span(self, kind, seconds):
        if self.profiler.record:
            self.profiler.record((kind, "ip", self.now, self.now + seconds, 0))
        self.now += seconds

    def step(self, number):
        """Iterate; return whether the tuning is over."""
        engine = self.engine
        self.now += 100.0  # a test, before the iteration
        hiccup = 3.0 if number % 6 == 0 else 0.0
        self.span(Kind.FORWARD, LAYER_SECONDS / 2)
        self.span(Kind.BACKWARD, LAYER_SECONDS / 2)
        self.span(Kind.WAIT, hiccup + (engine.plans[engine.plan] if engine.plan >= 0 else 0.5))
        self.call(self.callbacks.end_of_iteration)
        return engine.plan_is_fixed

    @property
    def is_released(self):
        """Whether the plan is fixed, and nothing is timed or held back any more."""
        engine = self.engine
        return engine.plan_is_fixed and not engine.apart and self.profiler.record is None


@pytest.mark.parametrize("plans", [[0.3], [0.3, 0.1, 0.2], [0.1, 0.2]])
def test_the_fastest_plan_stays(plans):
    solver = FakeSolver(plans)
    count = next(number for number in range(1, 200) if solver.step(number))
    each = 0 if len(plans) == 1 else 1 + 16  # a quarter of a second, after one that warms up
    assert count == TIMED + each * len(plans)
    assert plans[solver.engine.plan] == min(plans)
    assert solver.is_released


def test_layers_are_timed_without_messages_and_plans_with_them():
    solver = FakeSolver([0.1, 0.2])
    for number in range(TIMED):
        assert solver.engine.apart
        solver.step(number)
    assert not solver.engine.apart


@pytest.mark.parametrize(
    "iterations, plan", [(2, -1), (TIMED + 5, 0), (TIMED + 20, 0), (TIMED + 40, 1)]
)
def test_a_snapshot_takes_the_fastest_so_far(iterations, plan):
    solver = FakeSolver([0.3, 0.1, 0.2])
    for number in range(iterations):
        assert not solver.step(number)
    solver.call(solver.callbacks.before_snapshot)
    assert solver.engine.plan == plan
    assert solver.is_released


@pytest.mark.parametrize("steps", [0, 1])
def test_loops_by_hand_are_not_timed(tmp_path, steps):
    """They have no distinct iterations, so timing them would never end."""
    solver = tiny_solver(tmp_path, engine=Undecided([]))
    Tuning().follow(solver)
    solver.step(steps)
    assert solver.profiler.record is not None
    for _ in range(2):
        solver.net.forward()
        solver.net.backward()
        solver.apply_update()
        assert solver.profiler.record is None
    solver.close()
