"""Parameters without a net, for programs that run under mpirun and for unit tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pycaffe_dist.blob import Blob


class FakeLayer:
    """A layer with blobs, of which some hold running statistics."""

    def __init__(self, name: str):
        self.name = name
        self.statistics: list[Blob] = []

    def statistics_blobs(self) -> list[Blob]:
        return self.statistics


class FakeParameter:
    """What the engine reads of a parameter."""

    def __init__(self, layer: FakeLayer, index: int, shape: tuple[int, ...], dtype=np.float32):
        self.layer, self.index = layer, index
        self.layer_name = layer.name
        self.key = f"{layer.name}[{index}]"
        self.blob = Blob(shape, dtype)
        self.shape = self.blob.shape
        self.receives_gradient = True


def parameters(shapes: Sequence[tuple[int, ...]], dtype=np.float32) -> list[FakeParameter]:
    """Return one parameter per shape, in layers of two (weights and bias)."""
    return [
        FakeParameter(FakeLayer(f"layer{number // 2}"), number % 2, shape, dtype)
        for number, shape in enumerate(shapes)
    ]


def statistics(name: str, shape: tuple[int, ...]) -> FakeParameter:
    """Return a parameter that holds running statistics."""
    layer = FakeLayer(name)
    parameter = FakeParameter(layer, 0, shape)
    layer.statistics.append(parameter.blob)
    parameter.receives_gradient = False
    return parameter
