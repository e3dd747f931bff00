"""Inference: forward of a net whose blobs between the layers nobody reads.

Products take in the layers behind them (`Folded`), and the data of blobs share memory
(`SharedData`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.concat import Concat
from pycaffe_dist.layers.eltwise import Eltwise
from pycaffe_dist.layers.folded import Folded, kind_of
from pycaffe_dist.layers.joined import Joined
from pycaffe_dist.net import idle
from pycaffe_dist.net.build import Node
from pycaffe_dist.net.fusion import joined_at
from pycaffe_dist.net.repeated import Repeated
from pycaffe_dist.net.shared_data import Group, SharedData

Ran = Callable[[int], None]
# Layers whose tops' shapes follow from the inputs' shapes alone.
_STATIC = (
    *("BatchNorm", "Concat", "Convolution", "Dropout", "Eltwise", "Flatten", "InnerProduct"),
    *("Input", "LRN", "Pooling", "ReLU", "Scale", "Softmax", "Split"),
)


@dataclass
class _Step:
    """Layers that run as one, from node number ``first`` on, with the blobs from outside."""

    first: int
    nodes: list[Node]
    bottom: list[Blob]
    joined: Joined | None
    seen: list[tuple[int, ...]] = field(default_factory=list)
    # Is it part of another step?
    left_out: bool = False

    @property
    def top(self) -> list[Blob]:
        return self.nodes[-1].top

    @property
    def computes(self) -> bool:
        layer = self.nodes[0].layer
        some = self.joined is not None or layer.computes or any(layer.loss_weights)
        return some and not self.left_out

    @property
    def repeats(self) -> bool:
        """Whether all that it does in each pass, for blobs of the same shapes, is kernels."""
        layer = self.nodes[0].layer
        if layer.reshape_every_forward or idle.is_idle(self.nodes[0]):
            return False
        if self.joined is not None:
            return self.joined.repeats_calls
        return layer.repeats_calls or not self.computes

    def follow(self) -> None:
        """Reshape if bottoms changed their shapes."""
        layer = self.nodes[0].layer
        if layer.reshape_every_forward or [blob.shape for blob in self.bottom] != self.seen:
            self.reshape()

    def run(self) -> None:
        """Compute the tops."""
        if idle.is_idle(self.nodes[0]):
            for node in self.nodes:
                idle.forward(node)
        elif self.joined is not None:
            self.joined.forward(self.nodes[0].bottom, self.top)
        else:
            self.nodes[0].layer.forward(self.nodes[0].bottom, self.top)

    def reshape(self) -> None:
        """Reshape the layers, and plan for the new shapes."""
        for node in self.nodes:
            node.layer.reshape(node.bottom, node.top)
        self.seen = [blob.shape for blob in self.bottom]
        self.hold()

    def hold(self) -> None:
        """Take the present parameters."""
        if isinstance(self.joined, Folded) and self.top[0].count:
            self.joined.hold(self.nodes[0].bottom[0], self.top[0])


class Inference:
    """The steps of a net's forward, and the memory of the blobs between them.

    Only ``kept`` blobs and those of layers without bottoms have values after forward.
    """

    def __init__(self, nodes: Sequence[Node], kept: Collection[Blob], names: Sequence[str]):
        self._nodes = nodes
        self._private = {id(blob.data_storage) for blob in _private(nodes, kept)}
        self._steps = list(self._find_steps())
        self._groups = self._find_groups()
        self._shared = SharedData(
            self._groups,
            "this blob's data is not kept: the net was made with keep_blobs=False and keeps "
            f"{', '.join(names)}; a net with keep_blobs=True keeps all blobs",
        )
        self._place()
        self._stale = True
        self.has_run = False

    def weights_changed(self) -> None:
        """Take the parameters anew before the next forward."""
        self._stale = True

    def forward(self, before: Ran, after: Ran, one_by_one: bool) -> None:
        """Run all layers.

        ``before`` and ``after`` are called around each step that computes, with the index of its
        first layer: all steps if they shall run ``one_by_one``, else those that do not repeat.
        """
        self.has_run = True
        if self._shapes != self._input_shapes():
            self.reshape()
        with self._shared.open():
            if self._stale:
                self._stale = False
                for step in self._steps:
                    step.hold()
                for _, repeated in self._parts:
                    repeated.forget()
            for steps, repeated in self._parts:
                if steps[0].repeats and not one_by_one:
                    repeated.run()
                else:
                    _run(steps, before, after)

    def reshape(self) -> None:
        """Reshape all layers in order."""
        with self._shared.open():
            for step in self._steps:
                step.reshape()
        self._place()

    def end(self) -> None:
        """Give all blobs memory of their own; the net must be reshaped then."""
        self._shared.end()

    def _input_shapes(self) -> list[tuple[int, ...]]:
        return [blob.shape for node in self._nodes if not node.bottom for blob in node.top]

    def _place(self) -> None:
        """Place the blobs for their present shapes, and leave out what computes nothing."""
        numbers = {id(blob): n for n, group in enumerate(self._groups) for blob in group.blobs}
        inside: dict[int, list[int]] = {}
        left_out = set()
        for node in self._nodes if self._is_static else ():
            parts = [numbers.get(id(blob), -1) for blob in node.bottom]
            top = numbers.get(id(node.top[0]), -1) if node.top else -1
            placed = {part for others in inside.values() for part in others}
            fits = -1 not in (top, *parts) and len({*parts, top}) == len(parts) + 1
            # A part cannot have parts, or be in two places.
            free = not placed & {*parts, top} and not inside.keys() & {*parts}
            if isinstance(node.layer, Concat) and node.layer.joins_memory and fits and free:
                inside[top] = parts
                left_out.add(node.name)
        self._shared.place(inside)
        for step in self._steps:
            step.left_out = step.nodes[0].name in left_out
        runs = [list(run) for _, run in groupby(self._steps, lambda step: step.repeats)]
        self._parts = [(steps, Repeated(partial(_run, steps), _blobs(steps))) for steps in runs]
        self._shapes = self._input_shapes()

    @property
    def _is_static(self) -> bool:
        return all(node.layer.type in _STATIC for node in self._nodes)

    def _find_steps(self) -> Iterator[_Step]:
        index = 0
        while index < len(self._nodes):
            step = self._folded(index)
            if step is None:
                joined = joined_at(self._nodes, index)
                count = len(joined.layers) if joined else 1
                some = list(self._nodes[index : index + count])
                step = _Step(index, some, some[0].bottom, joined)
            yield step
            index += len(step.nodes)

    def _folded(self, index: int) -> _Step | None:
        """Return a product and what it takes in; None for other layers."""
        node = self._nodes[index]
        kind = kind_of(node.layer)
        if kind is None or any(node.layer.loss_weights) or node.top[0].dtype.itemsize < 4:
            return None
        some, added = [node], None
        for following in self._nodes[index + 1 :]:
            source, layer = some[-1].top[0], following.layer
            alone = len(following.top) == 1 and not any(layer.loss_weights)
            if not alone or not self._goes_only_to(source, index + len(some)):
                break
            if added is not None and id(following.top[0].data_storage) in self._private:
                break
            scales = added is None and kind.has_channels(node.layer, source)
            if layer.rectifier_slope is not None:
                some.append(following)
                break
            if scales and layer.channel_affine(source) is not None:
                some.append(following)
                continue
            if added is not None or not kind.can_add(node.layer):
                break
            added = self._added(following, [other.top[0] for other in some], index + len(some))
            if added is None:
                break
            some.append(following)
        if added is not None:
            self._move(some[-1].top[0], added)
        joined = kind(node.layer, [other.layer for other in some[1:]], added is not None)
        return _Step(index, some, [*node.bottom, *([added] if added else [])], joined)

    def _goes_only_to(self, blob: Blob, reader: int) -> bool:
        """Tell whether no layer but number ``reader`` reads the present values of a blob."""
        node = self._nodes[reader]
        if not any(blob is bottom for bottom in node.bottom):
            return False
        return node.top[0] is blob or not self._is_read(blob, reader + 1)

    def _is_read(self, blob: Blob, start: int) -> bool:
        nodes = self._nodes[start:]
        return any(blob.shares_data_with(bottom) for node in nodes for bottom in node.bottom)

    def _added(self, node: Node, own: Sequence[Blob], index: int) -> Blob | None:
        """Return the other bottom of a sum if the sum may take its place."""
        if not (isinstance(node.layer, Eltwise) and node.layer.is_plain_sum):
            return None
        others = [blob for blob in node.bottom if blob is not own[-1]]
        if len(node.bottom) != 2 or len(others) != 1:
            return None
        (other,) = others
        first = self._nodes[index - len(own)]
        used = any(other.shares_data_with(blob) for blob in (*own, *first.bottom))
        free = id(other.data_storage) not in self._private and not self._is_read(other, index + 1)
        top_free = id(node.top[0].data_storage) not in self._private
        return other if free and top_free and not used else None

    def _move(self, blob: Blob, other: Blob) -> None:
        """Let a blob, and all that share its data, use the memory of another one."""
        old = blob.data_storage
        for node in self._nodes:
            for top in node.top:
                if top.data_storage is old:
                    top.data_storage = other.data_storage

    def _find_groups(self) -> list[Group]:
        """Return the blobs that live in forward only, by the memory that they share."""
        blobs: dict[int, list[Blob]] = {}
        for node in self._nodes:
            for blob in (*node.bottom, *node.top):
                found = blobs.setdefault(id(blob.data_storage), [])
                if not any(blob is other for other in found):
                    found.append(blob)
        spans: dict[int, tuple[int, int]] = {}
        for number, step in enumerate(self._steps):
            for blob in (*step.bottom, *step.top):
                key = id(blob.data_storage)
                spans[key] = (spans.get(key, (number,))[0], number)
        # Blobs inside of a step are never used.
        shared = [key for key in blobs if key not in self._private]
        return [Group(blobs[key], spans.get(key)) for key in shared]


def _run(steps: Sequence[_Step], before: Ran | None = None, after: Ran | None = None) -> None:
    for step in steps:
        if before and step.computes:
            before(step.first)
        step.follow()
        if step.computes:
            step.run()
            if after:
                after(step.first)


def _blobs(steps: Sequence[_Step]) -> list[Blob]:
    """Return the blobs that steps use, each once."""
    blobs = [blob for step in steps for blob in (*step.bottom, *step.top)]
    blobs += [blob for step in steps for node in step.nodes for blob in node.layer.blobs]
    return list({id(blob): blob for blob in blobs}.values())


def _private(nodes: Sequence[Node], kept: Collection[Blob]) -> Iterator[Blob]:
    """Yield the blobs with memory of their own."""
    yield from kept
    for node in nodes:
        if not node.bottom:
            yield from node.top
        if not node.layer.shares_data:
            yield from (*node.bottom, *node.top)
        yield from (top for top, weight in zip(node.top, node.layer.loss_weights) if weight)
