"""The base of layers that change with the number of their forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycaffe_dist.layers.base import Layer


class Counting(Layer):
    """A layer that counts its forward passes in ``iteration``; snapshots keep the count."""

    repeats = False
    iteration: int

    def state(self) -> dict[str, Any]:
        """Return the base's state and the count."""
        return {**super().state(), "iteration": self.iteration}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a count."""
        super().set_state(state)
        self.iteration = int(state["iteration"])

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on from the count of an earlier run, which all of its ranks share."""
        rank = self.context.shard.rank
        self.set_state(states[rank if rank < len(states) else 0])
