"""Fusion: layers that run as one, so that the values between them stay out of memory."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pycaffe_dist.blob import Blob
    from pycaffe_dist.layers.base import Layer


class Joined(abc.ABC):
    """Successive ``layers``: one with one top, and layers in place on this top.

    After `forward`, `backward` replaces the layers' own, unless `part` was called.
    """

    def __init__(self, *layers: Layer):
        self.layers = layers

    @abc.abstractmethod
    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Compute the same top's data as the layers one after the other."""

    def backward(
        self, position: int, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        """Run the backward of layer number ``position``; the last layer comes first.

        Afterwards this layer's parameters have their gradients, as usual.
        """
        self.layers[position].backward(top, propagate_down, bottom)

    @property
    def repeats_calls(self) -> bool:
        """Whether the calls of one pass may be made again: all layers must allow it."""
        return all(layer.repeats_calls for layer in self.layers)

    def part(self, top: list[Blob]) -> None:  # noqa: B027 (optional)
        """Store the values for the layers' own backward, as if they had run one by one."""


class Rectified(Joined):
    """A layer whose ``forward`` and ``backward`` can rectify the top, and a rectifier."""

    def __init__(
        self,
        layer: Layer,
        rectifier: Layer,
        forward: Callable[[list[Blob], list[Blob], float | None], None],
        backward: Callable[[list[Blob], list[bool], list[Blob], float | None], None],
    ):
        super().__init__(layer, rectifier)
        self._forward, self._backward = forward, backward

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Multiply non-positive results by the rectifier's slope before storing them."""
        self._forward(bottom, top, self.layers[1].rectifier_slope)

    def backward(
        self, position: int, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        """Rectify the top's diff and run the layer's backward, all at the layer's turn."""
        if position == 0:
            self._backward(top, propagate_down, bottom, self.layers[1].rectifier_slope)
