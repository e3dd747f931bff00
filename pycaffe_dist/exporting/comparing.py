"""Compares two nets blob by blob on the same inputs: of Caffe, ONNX or exported modules."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np

from pycaffe_dist.errors import DataError, NetError, UsageError
from pycaffe_dist.exporting import checking, safetensors
from pycaffe_dist.exporting.packages import require
from pycaffe_dist.exporting.steps import steps_of
from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.reports.compare import Difference, differences_table
from pycaffe_dist.reports.sources import without_sources
from pycaffe_dist.schema import caffe_pb2, text

RANDOM = "random"
_JOIN = "+"
Arrays = dict[str, np.ndarray]


class Model(Protocol):
    """A net that some program runs."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return all values that have a name, in order."""

    def random(self) -> Arrays | None:
        """Return random inputs, None if shapes are not known."""

    def layer_of(self, blob: str) -> str:
        """Return the layer that writes a blob, empty if it is not known."""


def is_model(name: str) -> bool:
    """Tell whether a name is one of a net that can be run, not of a file of weights."""
    return _JOIN in name or name.endswith((".onnx", ".py"))


@dataclass(frozen=True)
class NetComparison:
    """The differences of the blobs that two nets have, in the order of the first.

    ``first`` says which blob is the first to differ by more than the tolerance; empty if none does.
    """

    blobs: tuple[Difference, ...]
    first: str
    tolerance: float

    def table(self) -> str:
        """Return a line for each blob, and the sum."""
        last = f"the first that differs is {self.first}"
        if not self.first:
            last = f"{len(self.blobs)} blobs are the same within {self.tolerance:g}"
        return f"{differences_table(self.blobs)}\n{last}"


def compare(first: str, second: str, inputs: str, tolerance: float) -> NetComparison:
    """Compare two nets, each PROTOTXT+CAFFEMODEL, an .onnx or an exported .py.

    ``inputs`` is an .npz with an array for each input, or RANDOM.  Raises PcaffeError.
    """
    models = [_open(first), _open(second)]
    given = None if inputs == RANDOM else _read(inputs)
    for model in models:
        given = model.random() if given is None else given
    if given is None:
        raise UsageError("the inputs' shapes are not known: give arrays with --inputs=FILE.npz")
    one, two = (model.run(given) for model in models)
    others = {_plain(name): array for name, array in two.items()}
    shared = {name: others[_plain(name)] for name in one if _plain(name) in others}
    if not shared:
        raise UsageError(f"no blob of {first} has the name of one of {second}")
    found = checking.differences({name: one[name] for name in shared}, shared)
    worst = next((each for each in found if each.note or each.relative > tolerance), None)
    if worst is None:
        return NetComparison(tuple(found), "", tolerance)
    layers = filter(None, (model.layer_of(worst.name) for model in models))
    first = " of ".join([f"blob '{worst.name}'", *layers][:2])
    return NetComparison(tuple(found), first, tolerance)


def _plain(name: str) -> str:
    """Return a name as an exported module writes it."""
    return "".join(c if c.isalnum() else "_" for c in name).strip("_")


def _read(path: str) -> Arrays:
    try:
        with np.load(path) as archive:
            return {name: np.asarray(array, np.float32) for name, array in archive.items()}
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the inputs {path}: {error}") from None


def _open(name: str) -> Model:
    if name.endswith(".onnx"):
        return OnnxModel(name)
    if name.endswith(".py"):
        return TorchModel(name)
    prototxt, _, weights = name.partition(_JOIN)
    if not weights:
        raise UsageError(f"a net is PROTOTXT+CAFFEMODEL, an .onnx or a .py, not '{name}'")
    return CaffeModel(prototxt, weights)


class CaffeModel:
    """A prototxt with weights, in the TEST phase."""

    def __init__(self, prototxt: str, weights: str):
        param, places = text.read_net_with_places(prototxt)
        param = with_state(param, caffe_pb2.TEST)
        self._net = Net(without_sources(param, None, places), places=places)
        self._net.load_weights(weights)
        self._steps = steps_of(self._net)
        self._writers = {
            self._steps.blobs[top]: step for step in self._steps.steps for top in step.tops
        }

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return all blobs that layers write, after the last layer in place."""
        _require(inputs, self._steps.inputs)
        given = {name: inputs[name] for name in self._steps.inputs}
        return checking.forward(self._net, given, {name: name for name in self._writers})

    def random(self) -> Arrays:
        """Return random inputs of the prototxt's shapes."""
        return checking.random_inputs(self._steps, self._steps.inputs)

    def layer_of(self, blob: str) -> str:
        """Return the last layer that writes a blob, with its type."""
        step = self._writers.get(blob)
        return "" if step is None else f"layer '{step.name}' ({step.type})"


class OnnxModel:
    """An ONNX file, whose values all become outputs."""

    def __init__(self, path: str):
        require(path, "onnx", "onnxruntime")
        import onnx

        from pycaffe_dist.exporting.onnx.models import Session

        try:
            model = onnx.load(path)
        except Exception as error:
            raise DataError(f"cannot read {path} as ONNX: {error}") from None
        known = {value.name for value in model.graph.output}
        names = [name for node in model.graph.node for name in node.output if name]
        for name in names:
            if name not in known:
                model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
        self._order = [name for name in names if ":" not in name]
        self._session = Session(model.SerializeToString())

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return all values with names."""
        _require(inputs, self._session.inputs)
        found = self._session.run({name: inputs[name] for name in self._session.inputs})
        return {name: found[name] for name in self._order}

    def random(self) -> Arrays | None:
        """Return random inputs, if only the batch varies."""
        shapes = self._session.inputs
        shapes = {k: [1 if size == "batch" else size for size in v] for k, v in shapes.items()}
        if not all(isinstance(size, int) for shape in shapes.values() for size in shape):
            return None
        rng = np.random.default_rng(0)
        return {k: rng.standard_normal(shape, np.float32) for k, shape in shapes.items()}

    def layer_of(self, blob: str) -> str:
        """Nothing: a blob has its name."""
        return ""


class TorchModel:
    """An exported module with the weights beside it."""

    def __init__(self, path: str):
        require(path, "torch", "safetensors")
        from pycaffe_dist.exporting.torch.exporting import Module

        file = Path(path)
        try:
            content = file.read_text(encoding="utf-8")
        except OSError as error:
            raise DataError(f"cannot read {path}: {error}") from None
        state = safetensors.read(file.with_suffix(".safetensors"))
        names = [line[6:].partition("(")[0] for line in content.splitlines() if _is_class(line)]
        if not names:
            raise DataError(f"{path} has no class with a module of PyTorch")
        self._module = Module(content, names[-1], state, training=False)

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the variables of ``forward`` at its end."""
        code = type(self._module.net).forward.__code__
        names = code.co_varnames[1 : code.co_argcount]
        given = {_plain(name): array for name, array in inputs.items()}
        _require(given, [_plain(name) for name in names])
        found: dict[str, Any] = {}

        def at(frame: FrameType, event: str, _: Any) -> None:
            if event == "return" and frame.f_code is code:
                found.update(frame.f_locals)

        sys.setprofile(at)
        try:
            self._module.run({name: given[_plain(name)] for name in names})
        finally:
            sys.setprofile(None)
        skipped = {"self", *names}
        return {name: v.detach().numpy() for name, v in found.items() if name not in skipped}

    def random(self) -> None:
        """Nothing: the file does not fix its shapes."""

    def layer_of(self, blob: str) -> str:
        """Nothing: a blob has its name."""
        return ""


def _is_class(line: str) -> bool:
    return line.startswith("class ") and "(nn.Module)" in line


def _require(given: Any, wanted: Any) -> None:
    missing = [name for name in wanted if name not in given]
    if missing:
        raise NetError(
            f"inputs {', '.join(missing)} are missing; given are {', '.join(given) or 'none'}"
        )
