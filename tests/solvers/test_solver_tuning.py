"""The exchange plan that a run keeps, with a solver whose iterations take given times."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tiny import tiny_solver

from pycaffe_dist.comm.cluster import LocalCluster
from pycaffe_dist.profiling import Kind, Profiler
from pycaffe_dist.solvers.engine import TunableEngine
from pycaffe_dist.solvers.local_engine import LocalEngine
from pycaffe_dist.solvers.tuning import Tuning

LAYER_SECONDS = 1 / 64
TIMED = 3  # iterations, of which the first one warms up


class FakeSolver:
    """With plan n an iteration takes ``plans[n]`` seconds besides the layer's time."""

    def __init__(self, plans: list[float]):
        self.plans, self.plan, self.now = plans, -1, 0.0
        self.apart, self.plan_is_fixed = False, False
        self.engine, self.cluster, self.profiler = self, LocalCluster(), Profiler()
        self.net = SimpleNamespace(layer_names=["ip"], nodes=["ip"], parameters=[])
        self.tuning = Tuning(self, self)

    def profile(self, record, wanted=True):
        (self.profiler.add if wanted else self.profiler.remove)(record)

    def keep_apart(self, apart):
        self.apart = apart

    def finish_updates(self):
        pass

    def revise(self, parameters, times):
        assert (times.forward, times.backward) == ((LAYER_SECONDS / 2,), (LAYER_SECONDS / 2,))
        self.plan = 0
        return len(self.plans)

    def use_plan(self, number, parameters, words=""):
        self.plan = number

    def fix_plan(self):
        self.plan_is_fixed = True

    def span(self, kind, seconds):
        if self.profiler.record:
            self.profiler.record(kind, "ip", self.now, self.now + seconds)
        self.now += seconds

    def step(self, number):
        """Iterate; return whether the tuning is over."""
        self.now += 100.0  # a test, before the iteration
        hiccup = 3.0 if number % 6 == 0 else 0.0
        self.span(Kind.FORWARD, LAYER_SECONDS / 2)
        self.span(Kind.BACKWARD, LAYER_SECONDS / 2)
        self.span(Kind.WAIT, hiccup + (self.plans[self.plan] if self.plan >= 0 else 0.5))
        return self.tuning.end_iteration()


@pytest.mark.parametrize("plans", [[0.3], [0.3, 0.1, 0.2], [0.1, 0.2]])
def test_the_fastest_plan_stays(plans):
    solver = FakeSolver(plans)
    count = next(number for number in range(1, 200) if solver.step(number))
    each = 0 if len(plans) == 1 else 1 + 16  # a quarter of a second, after one that warms up
    assert count == TIMED + each * len(plans)
    assert solver.plans[solver.plan] == min(plans)
    assert solver.plan_is_fixed and not solver.apart and solver.profiler.record is None


def test_layers_are_timed_without_messages_and_plans_with_them():
    solver = FakeSolver([0.1, 0.2])
    for number in range(TIMED):
        assert solver.apart
        solver.step(number)
    assert not solver.apart


@pytest.mark.parametrize(
    "iterations, plan", [(2, -1), (TIMED + 5, 0), (TIMED + 20, 0), (TIMED + 40, 1)]
)
def test_a_snapshot_takes_the_fastest_so_far(iterations, plan):
    solver = FakeSolver([0.3, 0.1, 0.2])
    for number in range(iterations):
        assert not solver.step(number)
    solver.tuning.stop()
    assert solver.plan == plan
    assert solver.plan_is_fixed and not solver.apart and solver.profiler.record is None


class Undecided(LocalEngine, TunableEngine):
    can_revise = True

    def keep_apart(self, apart):
        pass

    def revise(self, parameters, times):
        return 0

    def use_plan(self, number, parameters, words=""):
        pass


@pytest.mark.parametrize("steps", [0, 1])
def test_loops_by_hand_are_not_timed(tmp_path, steps):
    """They have no distinct iterations, so timing them would never end."""
    solver = tiny_solver(tmp_path, engine=Undecided())
    solver.step(steps)
    assert solver.profiler.record is not None
    for _ in range(2):
        solver.net.forward()
        solver.net.backward()
        solver.apply_update()
        assert solver.profiler.record is None
    solver.close()
