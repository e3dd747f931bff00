"""Which layers run as one with those behind them, and which of them last did."""

from __future__ import annotations

from collections.abc import Sequence

from pycaffe_dist.layers.joined import Joined
from pycaffe_dist.net.build import Node


class Fusing:
    """The joined layers of a net, and which of them have run forward as one."""

    def __init__(self, nodes: Sequence[Node]):
        self._nodes = nodes
        self._joined = _find(nodes)
        # By the index of a layer that ran with others: those, and the index of the first.
        self._ran: dict[int, tuple[Joined, int]] = {}

    def starting_at(self, index: int, last: int) -> Joined | None:
        """Return what runs a layer and others, up to ``last``, as one; None if nothing does."""
        joined = self._joined.get(index)
        return joined if joined and index + len(joined.layers) - 1 <= last else None

    def ran(self, joined: Joined, first: int) -> None:
        """Take note that layers have run as one."""
        for index in range(first, first + len(joined.layers)):
            self._ran[index] = joined, first

    def part(self, index: int) -> None:
        """Let each layer do its own backward, if a layer has run as one with others."""
        joined, first = self._ran.get(index, (None, 0))
        if joined is not None:
            joined.part(self._nodes[first].top)
            for other in range(first, first + len(joined.layers)):
                del self._ran[other]

    def part_all(self) -> None:
        """Let all layers do their own backward."""
        for index in tuple(self._ran):
            self.part(index)

    def part_unless_within(self, end: int, start: int) -> None:
        """Let layers do their own backward where it does not take in all that ran as one."""
        for index in (start, end):
            joined, first = self._ran.get(index, (None, 0))
            if joined is not None and not end <= first <= start - len(joined.layers) + 1:
                self.part(index)

    def backward(self, index: int) -> None:
        """Run a layer's backward, or its share of that of all that it ran with."""
        node = self._nodes[index]
        joined, first = self._ran.get(index, (None, 0))
        if joined is None:
            node.layer.backward(node.top, node.propagate_down, node.bottom)
        else:
            joined.backward(index - first, node.top, node.propagate_down, node.bottom)


def _find(nodes: Sequence[Node]) -> dict[int, Joined]:
    """Return what runs as one, by the index of the first layer.

    Values between layers are never stored, so none of them may count towards the loss.
    """
    found: dict[int, Joined] = {}
    free = 0
    for index, node in enumerate(nodes):
        if index < free or any(node.layer.loss_weights):
            continue
        following = [other.layer for other in _in_place_behind(nodes, index)]
        joined = node.layer.joined(following) if following else None
        if joined is not None:
            found[index] = joined
            free = index + len(joined.layers)
    return found


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
