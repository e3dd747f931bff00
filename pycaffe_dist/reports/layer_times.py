"""What `pcaffe time` finds: how long each layer takes."""

from __future__ import annotations

from dataclasses import dataclass

from pycaffe_dist.log import fmt
from pycaffe_dist.table import RULE, aligned


@dataclass(frozen=True)
class LayerTime:
    """A layer's mean times of forward and backward, in milliseconds."""

    name: str
    type: str
    forward: float
    backward: float


@dataclass(frozen=True)
class NetTimes:
    """Mean times of ``iterations`` iterations, in milliseconds.

    ``both`` has the time between the layers, too.
    """

    iterations: int
    layers: tuple[LayerTime, ...]
    forward: float
    backward: float
    both: float

    def table(self) -> str:
        """Return a line for each layer, and the sums."""
        return aligned(
            [
                ("layer", "type", "forward ms", "backward ms"),
                RULE,
                *((x.name, x.type, fmt(x.forward), fmt(x.backward)) for x in self.layers),
                RULE,
                ("all layers", "", fmt(self.forward), fmt(self.backward)),
                ("iteration", f"mean of {self.iterations}", fmt(self.both), ""),
            ],
            left=(0, 1),
        )
