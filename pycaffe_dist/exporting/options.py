"""What to export and how, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pycaffe_dist.reports.compare import Difference
from pycaffe_dist.schema import caffe_pb2

#: float32 results differ by rounding; float16 has 11 bits.
TOLERANCE, HALF_TOLERANCE = 1e-4, 2e-2


@dataclass(frozen=True)
class Options:
    """How to export a net.

    ``tolerance`` is the largest relative difference of an output; 0 stands for the format's.
    ``preprocess`` is a net with a data layer whose mean and scale the model shall apply.  ``fold``
    puts normalizations by fixed statistics into the layers before; ``float16`` halves the weights.
    """

    tolerance: float = 0.0
    preprocess: caffe_pb2.NetParameter | None = None
    fold: bool = False
    float16: bool = False
    solver: caffe_pb2.SolverParameter | None = None


@dataclass(frozen=True)
class Report:
    """An export: its files, the differences of its outputs, and what changed.

    ``varies`` has the axes of inputs whose sizes may change; ``fixed`` says which may not because
    results differed too much.  ``unchecked`` has the reason if there
    are no ``differences``.
    """

    files: list[str]
    differences: list[Difference] = field(default_factory=list)
    varies: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    folded: int = 0
    unchecked: str = ""
    fixed: str = ""

    def without_check(self, reason: str) -> Report:
        """Return the report with a reason why nothing was compared."""
        return replace(self, unchecked=reason)

    def with_differences(self, found: list[Difference]) -> Report:
        """Return the report with the differences of the outputs."""
        return replace(self, differences=found)

    @property
    def largest(self) -> float:
        """The largest relative difference of an output."""
        return max((each.relative for each in self.differences), default=0.0)

    def table(self) -> str:
        """Return the report as text."""
        lines = [
            f"{name}: largest relative difference {self._of(name):.3g}" for name in self._names
        ]
        if self.unchecked:
            lines.append(f"not checked: {self.unchecked}")
        if self.left_out:
            lines.append(f"left out, as inference has no use for them: {', '.join(self.left_out)}")
        if self.folded:
            lines.append(f"folded: {self.folded} layers")
        if self.varies:
            lines.append(f"sizes that may change: {', '.join(self.varies)}")
        if self.fixed:
            lines.append(f"fixed by the tolerance: {self.fixed}")
        return "\n".join([*lines, f"wrote {', '.join(self.files)}"])

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(each.name for each in self.differences))

    def _of(self, name: str) -> float:
        return max(each.relative for each in self.differences if each.name == name)
