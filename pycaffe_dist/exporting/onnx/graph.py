"""Builds an ONNX graph: nodes, constants, and names for values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pycaffe_dist.exporting.steps import Shape, Step

#: The version of ONNX's operators; ONNX Runtime has no MaxRoiPool of newer ones.
OPSET = 21

Value = str | float | int | Sequence[int] | Sequence[float] | np.ndarray


class Graph:
    """An ONNX graph under construction.

    ``op`` adds a node.  Its inputs are names of values or constants: arrays of integers become
    int64, other numbers the graph's ``dtype``, float32 or float16.
    """

    def __init__(self, dtype: Any = np.float32, prefix: str = ""):
        self.dtype = np.dtype(dtype)
        self._prefix = prefix
        self.layer = ""
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._count = 0

    def begin(self, step: Step) -> None:
        """Name the values that follow after this step's layer."""
        self.layer = step.name

    def new(self) -> str:
        """Return a name for a value."""
        self._count += 1
        return f"{self.layer}:{self._count}"

    def op(self, kind: str, *inputs: Value, to: str | None = None, **attributes: Any) -> str:
        """Add a node; return the name of its output, ``to`` or a new one."""
        return self.ops(kind, *inputs, to=[to or self.new()], **attributes)[0]

    def ops(self, kind: str, *inputs: Value, to: list[str], **attributes: Any) -> list[str]:
        """Add a node with these outputs; return them."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        name = f"{self.layer}:{kind}:{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, names, to, name=name, **attributes))
        return to

    def constant(self, value: Any, name: str | None = None) -> str:
        """Return the name of a constant, the same for the same value."""
        array = np.asarray(value)
        if array.dtype.kind in "iu":
            array = array.astype(np.int64)
        elif array.dtype.kind == "f":
            array = array.astype(self.dtype)
        if not isinstance(value, np.ndarray) and array.size == 0:
            array = array.astype(np.int64)
        if name is None and array.nbytes <= _SHARED_BYTES:
            kind = f"{array.dtype}{list(array.shape)}"
            name = f"{self._prefix}const:{kind}:{array.tobytes().hex()}"
        name = name or self.new()
        self._constants[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        return name

    def parameter(self, blob: np.ndarray, index: int, shape: Sequence[int] | None = None) -> str:
        """Return the name of a layer's parameter, on request in another shape."""
        array = blob if shape is None else blob.reshape(tuple(shape))
        return self.constant(array, f"{self.layer}:parameter:{index}")

    def cast(self, value: str, kind: Any, to: str | None = None) -> str:
        """Return ``value`` with another type: NumPy's, or ``float`` for the graph's."""
        dtype = self.dtype if kind is float else np.dtype(kind)
        node = self.op("Cast", value, to=to)
        number = helper.np_dtype_to_tensor_dtype(dtype)
        self._nodes[-1].attribute.append(helper.make_attribute("to", number))
        return node

    def sizes(self, value: str, start: int, stop: int | None = None) -> str:
        """Return the sizes of axes ``start`` to before ``stop`` as a vector."""
        limits: dict[str, Any] = {"start": start} if stop is None else {"start": start, "end": stop}
        return self.op("Shape", value, **limits)

    def inner(self) -> Graph:
        """Return a graph for the body of a loop, which may read this graph's values."""
        inner = Graph(self.dtype, f"{self.layer}:body:")
        inner.layer = f"{self.layer}:body"
        return inner

    def inner_graph(self, inputs: Sequence[str], outputs: Sequence[str], kind: int) -> Any:
        """Return this graph as the body of a loop."""
        given, made = (
            [helper.make_tensor_value_info(name, kind, None) for name in names]
            for names in (inputs, outputs)
        )
        constants = list(self._constants.values())
        return helper.make_graph(self._nodes, "body", given, made, constants)

    def model(
        self, name: str, inputs: Mapping[str, Sequence[Any]], outputs: Mapping[str, Shape]
    ) -> onnx.ModelProto:
        """Return the model; ``inputs`` have sizes or names of axes that vary."""
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in inputs.items()],
            [
                helper.make_tensor_value_info(k, TensorProto.FLOAT, [None] * len(shape))
                for k, shape in outputs.items()
            ],
            list(self._constants.values()),
        )
        opsets = [helper.make_opsetid("", OPSET)]
        version = helper.find_min_ir_version_for(opsets)
        model = helper.make_model(
            graph, opset_imports=opsets, producer_name="pcaffe", ir_version=version
        )
        onnx.checker.check_model(model)
        return model


# Small constants of the same value are one.
_SHARED_BYTES = 64
