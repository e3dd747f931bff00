"""Layer configurations for the contract tests: every file in ``cases/`` lists some as ``CASES``."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from layer_harness import LayerHarness

from pycaffe_dist.device import HOST

FOLDER = Path(__file__).with_name("cases")


@dataclass(frozen=True)
class Case:
    """One layer: its type, its options, and the values of its bottoms.

    ``bottoms`` maps names to functions of a random generator.  ``grows`` names the axes along which
    a second copy of the bottoms may be appended, except to those in ``fixed``.
    """

    type: str
    options: str = ""
    bottoms: dict = field(default_factory=dict)
    tops: int = 1
    phase: str = "TRAIN"
    grows: tuple[int, ...] = (0,)
    fixed: tuple[str, ...] = ()
    tolerance: float = 1e-6
    # Forward changes some of the parameters.
    statistics: bool = False
    # Parameters whose diffs are no derivatives, by definition of the layer.
    no_derivatives: tuple[int, ...] = ()
    # The bottoms' diffs are no derivatives, either.
    no_bottom_derivatives: bool = False
    # So many of a loss's values are its loss; others are parts of them, without a gradient.
    counted: int | None = None

    @property
    def name(self) -> str:
        words = "".join(c if c.isalnum() or c in "-." else " " for c in self.options).split()
        return "_".join([self.type, *words, *(["test"] if self.phase == "TEST" else [])])

    def text(self, in_place: bool = False) -> str:
        """Return the inside of the layer's prototxt entry."""
        tops = [f"y{index}" for index in range(self.tops)]
        if in_place:
            tops[0] = next(iter(self.bottoms))
        names = [f'bottom: "{name}"' for name in self.bottoms] + [f'top: "{top}"' for top in tops]
        return f'name: "l" type: "{self.type}" {" ".join(names)} {self.options}'

    def values(self) -> dict:
        """Return the bottoms' values."""
        rng = np.random.default_rng(7)
        return {name: make(rng) for name, make in self.bottoms.items()}

    def grown(self, axis: int) -> dict:
        """Return values for bottoms that have become twice as large along ``axis``."""
        return {
            name: value if name in self.fixed else np.concatenate([value, value], axis)
            for name, value in self.values().items()
        }

    def can_be_in_place(self) -> bool:
        """Tell whether the layer's top may be its bottom."""
        if not self.tops or not self.bottoms or "negative_slope: -" in self.options:
            return False
        return self.build().layer.in_place

    def build(self, values: dict | None = None, *, in_place=False, dtype=np.float64, device=HOST):
        """Return a harness whose parameters are random."""
        values = self.values() if values is None else values
        harness = LayerHarness(
            self.text(in_place), values, phase=self.phase, dtype=dtype, device=device
        )
        harness.counted = self.counted
        rng = np.random.default_rng(11)
        for blob in harness.layer.blobs:
            blob.data[...] = rng.uniform(0.2, 1, blob.shape) * rng.choice([-1, 1], blob.shape)
        for blob in harness.layer.statistics_blobs():
            np.abs(blob.data, out=blob.data)
        return harness


def case(type, options="", /, tops=1, phase="TRAIN", **rest) -> Case:
    """Return a case; keywords that are functions are bottoms, the others fields of `Case`."""
    bottoms = {name: value for name, value in rest.items() if callable(value)}
    fields = {name: value for name, value in rest.items() if not callable(value)}
    return Case(type, options, bottoms, tops, phase, **fields)


def normal(*shape):
    return lambda rng: rng.standard_normal(shape)


def positive(*shape):
    return lambda rng: rng.uniform(0.5, 2, shape)


def integers(below, *shape):
    return lambda rng: rng.integers(0, below, shape).astype(float)


def marks(*shape):
    """Zeros and ones: 1 where a sequence continues."""
    return lambda rng: (rng.random(shape) < 0.7).astype(float)


def constant(*values):
    return lambda rng: np.array(values, float)


def collect() -> list[Case]:
    """Return the cases of all files, in the order of their names."""
    cases = []
    for path in sorted(FOLDER.glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"cases_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        cases += module.CASES
    return cases
