"""What `pcaffe test` finds: the means of a net's outputs."""

from __future__ import annotations

from dataclasses import dataclass

from pycaffe_dist.log import fmt
from pycaffe_dist.table import aligned


@dataclass(frozen=True)
class Output:
    """The means of an output's values; ``loss_weight`` is 0 when it is not part of the loss."""

    name: str
    means: tuple[float, ...]
    loss_weight: float


@dataclass(frozen=True)
class Scores:
    """Means over ``iterations`` batches.

    ``precisions`` has the mean average precision of outputs of detections, by the way of measuring
    it.
    """

    iterations: int
    loss: float
    outputs: tuple[Output, ...]
    precisions: dict[str, dict[str, float]]

    def table(self) -> str:
        """Return a line for each value."""
        rows = [("output", f"mean of {self.iterations} batches", "")]
        for output in self.outputs:
            weight = f"loss, weight {fmt(output.loss_weight)}" if output.loss_weight else ""
            for number, mean in enumerate(output.means):
                name = f"{output.name}[{number}]" if len(output.means) > 1 else output.name
                rows.append((name, fmt(mean), weight))
        for name, found in self.precisions.items():
            rows += [
                (name, fmt(value), f"mean average precision, {version}")
                for version, value in found.items()
            ]
        rows.append(("whole loss", fmt(self.loss), ""))
        return aligned(rows, left=(0, 2))
