"""Makes ONNX models of nets, and runs models with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pycaffe_dist.errors import NetError
from pycaffe_dist.exporting.onnx.graph import Graph
from pycaffe_dist.exporting.onnx.register import CONVERTERS
from pycaffe_dist.exporting.preprocessing import Preprocessing
from pycaffe_dist.exporting.steps import Shape, Steps

_AXES = {0: "batch", 2: "height", 3: "width"}
#: The axes of inputs whose sizes may vary.
BATCH, IMAGE = frozenset({0}), frozenset({0, 2, 3})


def model_of(
    net: Steps,
    vary: Collection[int] = (),
    half: bool = False,
    preprocessing: Preprocessing | None = None,
) -> Any:
    """Return an onnx.ModelProto; raises NetError with all layers that ONNX cannot express.

    The axes in ``vary`` have names instead of sizes.  With ``half`` it computes in float16; inputs
    and outputs stay float32.
    """
    if not net.outputs:
        raise NetError(f"net '{net.name}' has no outputs to export")
    graph = Graph(np.float16 if half else np.float32)
    renamed = {name: _taken(graph, name, half, preprocessing) for name in net.inputs}
    if half:
        renamed |= {name: f"{name}:half" for name in net.outputs}
    steps = [
        replace(
            step,
            bottoms=[renamed.get(name, name) for name in step.bottoms],
            tops=[renamed.get(name, name) for name in step.tops],
        )
        for step in net.steps
    ]
    CONVERTERS.run(steps, graph)
    if half:
        for name in net.outputs:
            graph.cast(renamed[name], np.float32, to=name)
    shapes = {top: shape for s in net.steps for top, shape in zip(s.tops, s.top_shapes)}
    inputs = {
        name: [_AXES[axis] if axis in vary else size for axis, size in enumerate(shape)]
        for name, shape in net.inputs.items()
    }
    return graph.model(net.name, inputs, {name: shapes[name] for name in net.outputs})


def _taken(graph: Graph, name: str, half: bool, preprocessing: Preprocessing | None) -> str:
    """Return the value that layers read in an input's place."""
    graph.layer = name
    value = graph.cast(name, np.float16) if half else name
    if preprocessing is None or preprocessing.input != name:
        return value
    rest = graph.op("Sub", value, preprocessing.mean)
    return graph.op("Mul", rest, preprocessing.scale)


class Session:
    """A model in ONNX Runtime, from its bytes or a file; raises NetError if it cannot be run."""

    def __init__(self, model: bytes | str):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise NetError(f"ONNX Runtime refuses the model: {_first_line(error)}") from None

    @property
    def inputs(self) -> dict[str, list[Any]]:
        """The inputs' shapes; axes that vary have names."""
        return {value.name: list(value.shape) for value in self._session.get_inputs()}

    @property
    def outputs(self) -> list[str]:
        """The outputs' names."""
        return [value.name for value in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs; raises NetError."""
        try:
            return dict(zip(self.outputs, self._session.run(self.outputs, dict(inputs))))
        except Exception as error:
            raise NetError(f"ONNX Runtime cannot run the model: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def varying_axes(net: Steps, vary: Collection[int]) -> list[str]:
    """Return the names of the axes in ``vary`` that an input of ``net`` has."""
    most = max(map(len, net.inputs.values()))
    return [_AXES[axis] for axis in sorted(vary) if axis < most]


def reshaped(shape: Shape, vary: Collection[int], by: Sequence[int] = (1, 0, 32, 32)) -> Shape:
    """Return a shape with other sizes along the axes in ``vary``."""
    return tuple(
        size + by[axis] if axis in vary and axis < len(by) else size
        for axis, size in enumerate(shape)
    )
