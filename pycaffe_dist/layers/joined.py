"""Layers that run as one, so that what is between them never goes through memory."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pycaffe_dist.blob import Blob
    from pycaffe_dist.layers.base import Layer


class Joined(abc.ABC):
    """Successive ``layers``: one with one top, and some that work on that in place.

    After `forward`, `backward` takes the place of the layers' own, unless `part` was called.
    """

    def __init__(self, *layers: Layer):
        self.layers = layers

    @abc.abstractmethod
    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Compute the top's data as the layers, one after the other, would."""

    def backward(
        self, position: int, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        """Do the share of layer number ``position``; the last layer's comes first.

        After a layer's share its parameters have their gradients, as usual.
        """
        self.layers[position].backward(top, propagate_down, bottom)

    def part(self, top: list[Blob]) -> None:  # noqa: B027 (optional)
        """Store what the layers' own backward needs, as if they had run one by one."""


class Rectified(Joined):
    """A layer whose ``forward`` can rectify what it stores, and a rectifier."""

    def __init__(
        self,
        layer: Layer,
        rectifier: Layer,
        forward: Callable[[list[Blob], list[Blob], float | None], None],
    ):
        super().__init__(layer, rectifier)
        self._forward = forward

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Multiply what is not positive by the rectifier's slope before it is stored."""
        self._forward(bottom, top, self.layers[1].rectifier_slope)
