"""The source of a PyTorch module under construction, and its state."""

from __future__ import annotations

import ast
import functools
import keyword
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pycaffe_dist.exporting.steps import Step, Steps

_FOLDER = Path(__file__).parent / "parts"
# Modules of parts: classes and functions that exported files contain if they use them.
_PARTS = (
    "layers.py",
    "regions.py",
    "losses.py",
    "multibox.py",
    "detecting.py",
    "proposals.py",
    "margins.py",
    "methods.py",
)
_TAKEN = {
    "F",
    "Path",
    "load",
    "load_file",
    "math",
    "nn",
    "optimizer",
    "rate",
    "schedule",
    "self",
    "torch",
}
_BUILT_IN = {"float", "len", "zip"}
# Names of nn.Module's own.
_OF_MODULES = {
    *("add_module", "apply", "bfloat16", "buffers", "call_super_init", "children", "compile"),
    *("cpu", "cuda", "double", "dump_patches", "eval", "extra_repr", "float", "forward"),
    *("get_buffer", "get_parameter", "get_submodule", "half", "load_state_dict", "loss_weights"),
    *("modules", "parameters", "register_buffer", "register_module", "register_parameter"),
    *("requires_grad_", "share_memory", "state_dict", "to", "to_empty", "total_loss", "train"),
    *("training", "type", "xpu", "zero_grad"),
}


class Source:
    """Lines of a module's ``__init__`` and ``forward``, and the values of its state.

    ``values`` has Python's names of the net's values; ``learnt`` the names in the state of the
    parameters by layer and index.
    """

    def __init__(self, net: Steps):
        self._net = net
        self._layers = _Identifiers(_OF_MODULES)
        self._variables = _Identifiers(_TAKEN | {*_parts(), *_BUILT_IN})
        #: The name of the module's class.
        self.title = _Identifiers({*_parts(), *_TAKEN}).of(net.name).lstrip("_") or "Net"
        self._attribute = ""
        self.made: list[str] = []
        self.lines: list[str] = []
        self.parts: dict[str, None] = {}
        self.state: dict[str, np.ndarray] = {}
        self.learnt: dict[tuple[str, int], str] = {}
        self.inputs = [self._variables.of(name) for name in net.inputs]

    def begin(self, step: Step) -> None:
        """Name what follows after this step's layer."""
        self._attribute = self._layers.of(step.name)

    def variable(self, value: str) -> str:
        """Return the variable of a value: the blob's, of which it is the newest."""
        return self._variables.of(self._net.blobs.get(value, value))

    def part(self, name: str) -> str:
        """Note that the module needs a part; return its name."""
        self.parts[name] = None
        return name

    def module(self, expression: str, *values: tuple[str, np.ndarray], learnt: bool = True) -> str:
        """Make ``expression`` the layer's submodule with this state; return its name.

        The values are the layer's parameters in Caffe's order.
        """
        name = f"self.{self._attribute}"
        self.made.append(f"{name} = {expression}")
        for index, (key, array) in enumerate(values):
            self.state[f"{self._attribute}.{key}"] = np.ascontiguousarray(array, np.float32)
            if learnt:
                self.learnt[self._attribute, index] = f"{self._attribute}.{key}"
        return name

    def parameter(self, expression: str, array: np.ndarray) -> str:
        """Make ``expression`` a parameter of the module itself; return its name."""
        self.made.append(f"self.{self._attribute} = {expression}")
        self.state[self._attribute] = np.ascontiguousarray(array, np.float32)
        self.learnt[self._attribute, 0] = self._attribute
        return f"self.{self._attribute}"

    def attribute(self, layer: str) -> str:
        """Return the attribute of a layer."""
        return self._layers.of(layer)

    def buffer(self, array: np.ndarray) -> str:
        """Keep a constant in the state; return its name."""
        name = self._attribute
        shape = ", ".join(map(str, array.shape))
        self.made.append(f'self.register_buffer("{name}", torch.zeros({shape}))')
        self.state[name] = np.ascontiguousarray(array, np.float32)
        return f"self.{name}"

    def let(self, step: Step, expression: str, top: int | None = 0) -> None:
        """Set a top, or with None all tops, to an expression; {0}, {1}, … are the bottoms."""
        bottoms = [self.variable(name) for name in step.bottoms]
        names = step.tops if top is None else [step.tops[top]]
        targets = ", ".join(self.variable(name) for name in names)
        self.lines.append(f"{targets} = {expression.format(*bottoms)}")

    def let_first(self, step: Step, expression: str, count: int) -> None:
        """Set the tops to the first of the ``count`` values of an expression."""
        tops = len(step.tops)
        part = "" if tops == count else f"[:{tops}]" if tops > 1 else "[0]"
        self.let(step, f"{expression}{part}", None)

    def call(self, step: Step, part: str, *values: Any, returns: int = 1, **options: Any) -> None:
        """Set tops to what a part ``returns`` for the bottoms, with `arguments` behind them."""
        bottoms = ", ".join(f"{{{index}}}" for index in range(len(step.bottoms)))
        given = arguments(*values, **options)
        text = f"{self.part(part)}({', '.join(filter(None, (bottoms, given)))})"
        if returns > 1:
            self.let_first(step, text, returns)
        else:
            self.let(step, text)

    def part_sources(self) -> list[str]:
        """Return the sources of the parts that the module uses, and of those that they use."""
        known = _parts()
        wanted = [*self.parts]
        for name in wanted:
            nodes = ast.walk(ast.parse(known[name]))
            used = {node.id for node in nodes if isinstance(node, ast.Name)}
            wanted += [other for other in known if other in used and other not in wanted]
        return [source for name, source in known.items() if name in wanted]


@functools.cache
def _parts() -> Mapping[str, str]:
    """Return the sources of all parts by name."""
    found = {}
    for file in _PARTS:
        text = (_FOLDER / file).read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found[node.name] = ast.get_source_segment(text, node) or ""
    return found


class _Identifiers:
    """Python's names for names of layers or blobs, each of its own."""

    def __init__(self, taken: set[str]):
        self._taken = set(taken)
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Return the identifier of a name."""
        if name not in self._known:
            plain = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
            plain = f"_{plain}" if not plain or plain[0].isdigit() else plain
            while plain in self._taken or keyword.iskeyword(plain):
                plain += "_"
            self._taken.add(plain)
            self._known[name] = plain
        return self._known[name]


def arguments(*values: Any, **named: Any) -> str:
    """Return values as the arguments of a call; numbers of equal sides as one."""
    texts = [_text(value) for value in values]
    return ", ".join([*texts, *(f"{name}={_text(value)}" for name, value in named.items())])


def _text(value: Any) -> str:
    if isinstance(value, tuple | list) and value and all(each == value[0] for each in value):
        value = value[0]
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float):
        # The shortest text of the same float32, which Caffe's fields are.
        return str(np.float32(value)) if value != int(value) else repr(value)
    return repr(tuple(value) if isinstance(value, list) else value)
