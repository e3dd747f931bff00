"""Fusion: finds layers that run as one with the next layers, and tracks which of them did.

On the host, what only runs kernels is repeated without the layers (`Repeated`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from pycaffe_dist.layers.base import Layer
from pycaffe_dist.layers.joined import Joined
from pycaffe_dist.net.build import Node
from pycaffe_dist.net.repeated import Repeated


class Fusing:
    """Runs a net's layers, some of them as one, and remembers which of them ran forward as one.

    Unless ``on_host``, nothing is repeated.
    """

    def __init__(self, nodes: Sequence[Node], on_host: bool):
        self._nodes, self._on_host = nodes, on_host
        self._works: dict[Hashable, Callable[[], None]] = {}
        self._joined = _find(nodes)
        # By the index of a layer that ran with others: the joined layers, and the first one's
        # index.
        self._ran: dict[int, tuple[Joined, int]] = {}

    def starting_at(self, index: int, last: int) -> Joined | None:
        """Return the joined layers that start at a layer and end by ``last``; None without any."""
        joined = self._joined.get(index)
        return joined if joined and index + len(joined.layers) - 1 <= last else None

    def forward(self, index: int, joined: Joined | None) -> None:
        """Run forward of a layer, or of the ``joined`` layers that it begins."""
        if joined is None:
            self.part(index)
        key = "forward", index, joined is None
        work = self._works.get(key)
        if work is None:
            node, layer = self._nodes[index], joined or self._nodes[index].layer
            arguments = node.bottom, node.top
            work = self._works[key] = self._work(index, layer, "forward", *arguments)
        work()
        if joined is not None:
            for other in range(index, index + len(joined.layers)):
                self._ran[other] = joined, index

    def part(self, index: int) -> None:
        """Make the layers that ran as one with this layer use their own backward."""
        joined, first = self._ran.get(index, (None, 0))
        if joined is not None:
            joined.part(self._nodes[first].top)
            for other in range(first, first + len(joined.layers)):
                del self._ran[other]

    def part_all(self) -> None:
        """Make all layers use their own backward."""
        for index in tuple(self._ran):
            self.part(index)

    def part_unless_within(self, end: int, start: int) -> None:
        """Make layers use their own backward if it does not include all that ran as one."""
        for index in (start, end):
            joined, first = self._ran.get(index, (None, 0))
            if joined is not None and not end <= first <= start - len(joined.layers) + 1:
                self.part(index)

    def backward(self, index: int) -> None:
        """Run a layer's backward, or its share of the joined backward."""
        node, layer = self._nodes[index], self._nodes[index].layer
        joined, first = self._ran.get(index, (None, 0))
        # What backward does depends on these, too.
        sets = frozenset(layer.overwritten), frozenset(layer.factors_only)
        key = "backward", index, joined is None, *sets, *layer.param_propagate_down
        work = self._works.get(key)
        if work is None:
            arguments = node.top, node.propagate_down, node.bottom
            if joined is None:
                work = self._work(index, layer, "backward", *arguments)
            else:
                work = self._work(index, joined, "backward", index - first, *arguments)
            self._works[key] = work
        work()

    def _work(
        self, index: int, layer: Layer | Joined, method: str, *arguments: Any
    ) -> Callable[[], None]:
        """Return a function that calls ``layer.method``, or repeats its kernels without it."""

        def work() -> None:
            getattr(layer, method)(*arguments)

        if not (self._on_host and layer.repeats_calls):
            return work
        node = self._nodes[index]
        layers = layer.layers if isinstance(layer, Joined) else (layer,)
        parameters = [blob for each in layers for blob in each.blobs]
        repeated, own = Repeated(work, [*node.bottom, *node.top, *parameters]), vars(layer)
        # A program may replace the method, and do more in its place than run kernels.
        return lambda: work() if method in own else repeated.run()


def _find(nodes: Sequence[Node]) -> dict[int, Joined]:
    """Return the joined layers, by the index of the first."""
    found: dict[int, Joined] = {}
    free = 0
    for index in range(len(nodes)):
        joined = joined_at(nodes, index) if index >= free else None
        if joined is not None:
            found[index] = joined
            free = index + len(joined.layers)
    return found


def joined_at(nodes: Sequence[Node], index: int) -> Joined | None:
    """Return a layer joined with those behind it, or None.

    Values between the layers are never stored, so none of them may be part of the loss.
    """
    layer = nodes[index].layer
    following = [other.layer for other in _in_place_behind(nodes, index)]
    return layer.joined(following) if following and not any(layer.loss_weights) else None


def _in_place_behind(nodes: Sequence[Node], index: int) -> list[Node]:
    """Return the next layers as long as they work in place on the layer's only top."""
    found: list[Node] = []
    if len(nodes[index].top) != 1:
        return found
    (top,) = nodes[index].top
    for node in nodes[index + 1 :]:
        alone = len(node.bottom) == len(node.top) == 1
        in_place = alone and node.bottom[0] is top and node.top[0] is top
        if not in_place or any(node.layer.loss_weights):
            break
        found.append(node)
    return found
