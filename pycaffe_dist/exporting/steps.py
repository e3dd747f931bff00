"""A net as steps: each layer with its values and parameters, each value written once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from pycaffe_dist.errors import LayerError
from pycaffe_dist.layers import Layer
from pycaffe_dist.layers.inner_product import make_unit_length
from pycaffe_dist.net.net import Net

Shape = tuple[int, ...]


@dataclass
class Step:
    """A layer with the names and shapes of its bottoms and tops, and its parameters.

    Names of values are unique: a layer in place has a top of another name.  The last value of a
    blob has the blob's name.
    """

    layer: Layer
    bottoms: list[str]
    tops: list[str]
    bottom_shapes: list[Shape]
    top_shapes: list[Shape]
    blobs: list[np.ndarray] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.layer.name

    @property
    def type(self) -> str:
        """The layer's type."""
        return self.layer.type

    def error(self, message: str) -> LayerError:
        """Return an error that names the layer and its place."""
        return self.layer.error(message)

    def axis(self, axis: int, bottom: int = 0) -> int:
        """Return an axis of a bottom, which may be negative, as a number from 0."""
        return axis % max(1, len(self.bottom_shapes[bottom]))


@dataclass
class Steps:
    """The steps of a net, and its inputs and outputs: names of values with their shapes.

    ``blobs`` has the blob of each value.  ``left_out`` has the layers without a meaning in
    inference: losses and what only they need.
    """

    name: str
    inputs: dict[str, Shape]
    steps: list[Step]
    outputs: list[str]
    blobs: dict[str, str]
    left_out: list[str] = field(default_factory=list)


def steps_of(net: Net, training: bool = False) -> Steps:
    """Return the steps of ``net``, without losses unless for ``training``."""
    nodes = {node.name: node for node in net.nodes}
    names = _Names(net)
    inputs: dict[str, Shape] = {}
    steps, left_out = [], []
    for message in net.definition.layer:
        node = nodes[message.name]
        bottoms = [names.current(blob) for blob in message.bottom]
        tops = [names.next(blob, message.name) for blob in node.top_names]
        if not message.bottom and node.layer.type not in ("Parameter", "DummyData"):
            inputs.update({name: blob.shape for name, blob in zip(tops, node.top)})
            continue
        given, made = ([blob.shape for blob in blobs] for blobs in (node.bottom, node.top))
        blobs = [np.array(blob.read_data()) for blob in node.layer.blobs]
        if node.layer.changes_weights:  # in its next forward
            make_unit_length(blobs[0])
        steps.append(Step(node.layer, bottoms, tops, given, made, blobs))
    if not training:
        left_out = _without_losses(steps)
    read = {name for step in steps for name in step.bottoms}
    outputs = [name for step in steps for name in step.tops if name not in read]
    if not training:
        inputs = {name: shape for name, shape in inputs.items() if name in read}
    return Steps(net.name or "Net", inputs, steps, outputs, names.blobs, left_out)


class _Names:
    """Gives each value of a blob a name of its own; the last one, or an input, has the blob's."""

    def __init__(self, net: Net):
        layers = net.definition.layer
        self._left = Counter(blob for message in layers for blob in set(message.top))
        # An input keeps its name, so that the values after it get others.
        self._taken = {blob for message in layers if not message.bottom for blob in message.top}
        self._current: dict[str, str] = {}
        self.blobs: dict[str, str] = {}

    def current(self, blob: str) -> str:
        """Return the name of a blob's present value."""
        return self._current[blob]

    def next(self, blob: str, layer: str) -> str:
        """Return the name of the value that a layer writes."""
        if blob not in self._left:  # the top of a loss that has no name
            return layer
        self._left[blob] -= 1
        first = blob not in self._current
        plain = first if blob in self._taken else self._left[blob] == 0
        name = blob if plain else f"{blob}:{layer}"
        self._current[blob], self.blobs[name] = name, blob
        return name


def _without_losses(steps: list[Step]) -> list[str]:
    """Remove losses, measures of quality, and layers that only shape their labels; name them."""
    removed = [step for step in steps if step.layer.is_loss or step.type in _MEASURES]
    labels = {name for step in removed for name in step.bottoms[1:]}
    kept = [step for step in steps if step not in removed]
    for step in reversed(steps):
        read = {name for other in kept for name in other.bottoms}
        if step.type in _SHAPING and labels.issuperset(step.tops) and not read & {*step.tops}:
            kept.remove(step)
            removed.append(step)
            labels.update(step.bottoms)
    steps[:] = kept
    return [step.name for step in removed]


_MEASURES = ("Accuracy", "DetectionEvaluate", "SegAccuracy", "BboxAccuracy")
_SHAPING = ("Flatten", "Reshape", "Slice")
