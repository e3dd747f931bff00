"""The changing state of a run, beside weights, history and random numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.solvers.averaging import WeightAverage
from pycaffe_dist.solvers.best import Best
from pycaffe_dist.solvers.loss_scale import LossScale
from pycaffe_dist.solvers.losses import Losses
from pycaffe_dist.solvers.lr_policy import LearningRate

LayerStates = dict[str, dict[str, Any]]  # by the layers' names


class BeforeTest(NamedTuple):
    """The batches of each test net, and its layers' states, when a test began."""

    tested: list[int]
    states: list[LayerStates]


@dataclass
class TrainState:
    """A run's counters, which snapshots keep.

    ``tested`` counts the batches that each test net has been asked for by all ranks together;
    ``began`` is when the run began (`time.monotonic`), also if this rank joined it later.
    ``loss_scale`` is there for float16 only, ``before_test`` during a test that may be broken off,
    ``average`` and ``best`` if the solver asks for them.  ``resumed_statistics`` are this rank's in
    a snapshot, until all ranks have the same weights.
    """

    learning_rate: LearningRate
    losses: Losses
    loss_scale: LossScale | None
    tested: list[int]
    began: float
    average: WeightAverage | None = None
    best: Best | None = None
    iteration: int = 0
    before_test: BeforeTest | None = None
    resumed_statistics: list[str] = field(default_factory=list)
    _rate: tuple[int, float] = (-1, 0.0)  # the last iteration with a known learning rate; the rate

    def rate(self, cluster: Cluster) -> float:
        """Return the learning rate of this iteration; all ranks ask for it."""
        iteration, rate = self._rate
        if iteration != self.iteration:
            policy, loss = self.learning_rate, []
            if policy.needs_loss:
                loss = cluster.mean(np.array([self.losses.mean])).tolist()
            rate = policy.at(self.iteration, *loss)
            self._rate = self.iteration, rate
        return rate

    def forget_rate(self) -> None:
        """Ask the policy for this iteration's learning rate again: the iteration is another."""
        self._rate = (-1, 0.0)

    def take_batches(self, number: int, count: int) -> range:
        """Return the numbers of the next batches of a test net."""
        first = self.tested[number]
        self.tested[number] += count
        return range(first, first + count)
