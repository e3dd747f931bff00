"""What changes in a run from iteration to iteration, beside weights, history and random numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
    """A run's counters, of which a snapshot takes note.

    ``tested`` counts the batches that each test net has been asked for by all ranks together.
    ``loss_scale`` is there for float16 only, ``before_test`` during a test that may be broken off.
    ``resumed_statistics`` are this rank's in a snapshot, until all ranks have the same weights.
    """

    learning_rate: LearningRate
    losses: Losses
    loss_scale: LossScale | None
    tested: list[int]
    iteration: int = 0
    before_test: BeforeTest | None = None
    resumed_statistics: list[str] = field(default_factory=list)

    def take_batches(self, number: int, count: int) -> range:
        """Return the numbers of the next batches of a test net."""
        first = self.tested[number]
        self.tested[number] += count
        return range(first, first + count)
