"""Parameters without a net, for programs that run under mpirun and for other tests."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from pycaffe_dist.blob import Blob


class FakeLayer:
    """A layer with blobs; some hold running statistics."""

    def __init__(self, name: str):
        self.name = name
        self.statistics: list[Blob] = []

    def statistics_blobs(self) -> list[Blob]:
        return self.statistics


class FakeParameter:
    """The part of a parameter that the engine reads; with ``factor_rows`` its layer has factors."""

    def __init__(
        self,
        layer: FakeLayer,
        index: int,
        shape: tuple[int, ...],
        dtype=np.float32,
        factor_rows: int = 0,
    ):
        self.layer, self.index = layer, index
        self.layer_name = layer.name
        self.key = f"{layer.name}[{index}]"
        self.blob = Blob(shape, dtype)
        self.shape = self.blob.shape
        self.receives_gradient, self.regularization = True, ""
        self.changes_in_forward = False
        self.layer_index = self.ready_after = 0
        self.sharers = [(0, index)]
        self.factor_rows = factor_rows
        self.lr_mult = self.decay_mult = 1.0
        self.made: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def weights(self) -> np.ndarray:
        return self.blob.data

    @property
    def gradient(self) -> np.ndarray:
        return self.blob.diff

    def factors(self) -> tuple[np.ndarray, np.ndarray] | None:
        return self.made

    def run_backward(self, u: np.ndarray, v: np.ndarray, factored: Collection[str]) -> None:
        """Do what an inner product's backward does, which may leave the diff to others."""
        self.made = u, v
        if self.key not in factored:
            self.blob.diff[...] = u.T.astype(np.float64) @ v


def parameters(shapes: Sequence[tuple[int, ...]], dtype=np.float32) -> list[FakeParameter]:
    """Return one parameter per shape, in layers of two (weights and bias)."""
    return [
        FakeParameter(FakeLayer(f"layer{number // 2}"), number % 2, shape, dtype)
        for number, shape in enumerate(shapes)
    ]


def inner_products(
    shapes: Sequence[tuple[int, ...]], rows: int, dtype=np.float32
) -> list[FakeParameter]:
    """Return the weights of one inner product per shape, for batches of this size."""
    return [
        FakeParameter(FakeLayer(f"ip{number}"), 0, shape, dtype, rows)
        for number, shape in enumerate(shapes)
    ]


def statistics(name: str, shape: tuple[int, ...]) -> FakeParameter:
    """Return a parameter that holds running statistics."""
    layer = FakeLayer(name)
    parameter = FakeParameter(layer, 0, shape)
    layer.statistics.append(parameter.blob)
    parameter.receives_gradient = False
    return parameter
