"""Draws nets as graphs, as pycaffe does, with Graphviz.

The package pygraphviz contains Graphviz (``pip install 'pycaffe-dist[draw]'``); an installed
Graphviz works, too.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from typing import Any

from pycaffe_dist.errors import ArgumentError, UsageError
from pycaffe_dist.schema import caffe_pb2

LAYER_STYLE_DEFAULT = {"shape": "record", "fillcolor": "#6495ED", "style": "filled"}
NEURON_LAYER_STYLE = {"shape": "record", "fillcolor": "#90EE90", "style": "filled"}
BLOB_STYLE = {"shape": "octagon", "fillcolor": "#E0E0E0", "style": "filled"}

_COLORS = {
    "Convolution": "#FF5050",
    "Deconvolution": "#FF5050",
    "Pooling": "#FF9900",
    "InnerProduct": "#CC33FF",
}
_WITH_RATES = ("Convolution", "Deconvolution", "InnerProduct")
# Graphviz's empty label.
_NO_LABEL = '""'


class Graph:
    """A net's graph in Graphviz's language; drawn on demand."""

    def __init__(self, dot: str):
        self._dot = dot

    def to_string(self) -> str:
        """Return the graph in Graphviz's language."""
        return self._dot

    def create(self, prog: str = "dot", format: str = "ps") -> bytes:
        """Return the drawing in a ``format`` that Graphviz knows: svg, png, pdf, jpg, ps, …

        ``raw`` is the graph itself.  Raises UsageError without Graphviz or for an unknown format.
        """
        if format == "raw":
            return self._dot.encode()
        try:
            library = importlib.import_module("pygraphviz")
        except ImportError:
            return self._run(prog, format)
        try:
            return library.AGraph(string=self._dot).draw(format=format, prog=prog)
        except (OSError, TypeError, ValueError) as error:
            # Graphviz writes the reason to standard error, and pygraphviz fails on the rest.
            raise UsageError(f"Graphviz cannot draw '{format}'") from error

    def _run(self, prog: str, format: str) -> bytes:
        """Draw with an installed Graphviz."""
        if shutil.which(prog) is None:
            raise UsageError(
                f"drawing '{format}' needs Graphviz: pip install 'pycaffe-dist[draw]' brings it "
                "along; the format raw needs none"
            )
        command = [prog, f"-T{format}"]
        done = subprocess.run(command, input=self._dot.encode(), capture_output=True, check=False)
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip()
            raise UsageError(f"Graphviz cannot draw '{format}': {reason}")
        return done.stdout

    def write(self, path: str, prog: str = "dot", format: str = "raw") -> bool:
        """Write the drawing to a file; return True.  Raises UsageError."""
        data = self.create(prog, format)
        try:
            with open(path, "wb") as file:
                file.write(data)
        except OSError as error:
            raise UsageError(f"cannot write '{path}': {error.strerror}") from None
        return True


def get_pooling_types_dict() -> dict[int, str]:
    """Return the names of the pooling methods by number."""
    return {number: name for name, number in caffe_pb2.PoolingParameter.PoolMethod.items()}


def get_edge_label(layer: caffe_pb2.LayerParameter) -> str:
    """Return the label of the edge from a layer to its tops: its size, or ``""``."""
    if layer.type == "Data":
        return f"Batch {layer.data_param.batch_size}"
    if layer.type in ("Convolution", "Deconvolution"):
        return str(layer.convolution_param.num_output)
    if layer.type == "InnerProduct":
        return str(layer.inner_product_param.num_output)
    return _NO_LABEL


def get_layer_lr_mult(layer: caffe_pb2.LayerParameter) -> tuple[float, float]:
    """Return the learning-rate multipliers of a layer's weights and biases.

    Raises ArgumentError, a ValueError, for a layer type that has none.
    """
    if layer.type not in _WITH_RATES:
        raise ArgumentError(f"{layer.type} layers do not have a learning rate multiplier")
    rates = [param.lr_mult for param in layer.param]
    if len(rates) > 2:
        raise ArgumentError(f"layer '{layer.name}' has {len(rates)} learning rate multipliers")
    weights, biases = [*rates, 1.0, 1.0][:2]
    return weights, biases


def get_layer_label(
    layer: caffe_pb2.LayerParameter, rankdir: str, display_lrm: bool = False
) -> str:
    """Return a layer's label in quotes: name, type, kernel, and optionally its rates.

    In a graph from top to bottom the parts are side by side, otherwise one below another.
    """
    separator = " " if rankdir in ("TB", "BT") else r"\n"
    kind = layer.type
    if kind == "Pooling":
        kind += f" {get_pooling_types_dict()[layer.pooling_param.pool]}"
    parts = [layer.name, f"({kind})", *_kernel_parts(layer)]
    if display_lrm and layer.type in _WITH_RATES:
        rates = get_layer_lr_mult(layer)
        if any(rates):
            parts.append("lr mult: {:.1f}, {:.1f}".format(*rates))
    return f'"{separator.join(parts)}"'


def _kernel_parts(layer: caffe_pb2.LayerParameter) -> list[str]:
    """Return the label's parts for a window that moves over images."""
    if layer.type == "Pooling":
        param = layer.pooling_param
        kernel, stride, pad = param.kernel_size, param.stride, param.pad
    elif layer.type in ("Convolution", "Deconvolution"):
        param = layer.convolution_param
        kernel = param.kernel_size[0] if param.kernel_size else 1
        stride = param.stride[0] if param.stride else 1
        pad = param.pad[0] if param.pad else 0
    else:
        return []
    return [f"kernel size: {kernel}", f"stride: {stride}", f"pad: {pad}"]


def choose_color_by_layertype(layertype: str) -> str:
    """Return the color of a layer type: convolutions red, pooling orange, products violet."""
    return _COLORS.get(layertype, LAYER_STYLE_DEFAULT["fillcolor"])


def _is_in_phase(layer: caffe_pb2.LayerParameter, phase: int | None) -> bool:
    if phase is None:
        return True
    if layer.include and layer.exclude:
        raise ArgumentError(f"layer '{layer.name}' has both include and exclude")

    def fits(rule: Any) -> bool:
        return not rule.HasField("phase") or rule.phase == phase

    if layer.include:
        return any(fits(rule) for rule in layer.include)
    return not any(rule.HasField("phase") and rule.phase == phase for rule in layer.exclude)


def get_pydot_graph(
    caffe_net: caffe_pb2.NetParameter,
    rankdir: str,
    label_edges: bool = True,
    phase: int | None = None,
    display_lrm: bool = False,
) -> Graph:
    """Return the graph of a NetParameter: its layers and blobs, of ``phase`` only if given.

    ``rankdir`` is its direction: LR, RL, TB or BT.  Layers that work in place are green.
    """
    nodes: dict[str, str] = {}
    edges: list[str] = []
    for layer in caffe_net.layer:
        if not _is_in_phase(layer, phase):
            continue
        name = f"{layer.name}_{layer.type}"
        style = LAYER_STYLE_DEFAULT | {"fillcolor": choose_color_by_layertype(layer.type)}
        if list(layer.bottom) == list(layer.top) and len(layer.top) == 1:
            style = NEURON_LAYER_STYLE
        label = get_layer_label(layer, rankdir, display_lrm)[1:-1]
        nodes[name] = _node(name, _in_record(label), style)
        for blob in layer.bottom:
            nodes[f"{blob}_blob"] = _node(f"{blob}_blob", blob, BLOB_STYLE)
            edges.append(_edge(f"{blob}_blob", name, ""))
        size = get_edge_label(layer) if label_edges else _NO_LABEL
        for blob in layer.top:
            # A blob without readers has no style.
            nodes.setdefault(f"{blob}_blob", _node(f"{blob}_blob", blob, {}))
            edges.append(_edge(name, f"{blob}_blob", "" if size == _NO_LABEL else size))
    title = _quoted(caffe_net.name or "Net")
    lines = [f"digraph {title} {{", f"  rankdir={_quoted(rankdir)};"]
    return Graph("\n".join([*lines, *nodes.values(), *edges, "}", ""]))


def _quoted(text: str) -> str:
    return '"' + text.replace('"', r"\"") + '"'


def _in_record(label: str) -> str:
    """Escape the special characters of record labels."""
    return "".join(f"\\{char}" if char in "{}|<>" else char for char in label)


def _node(name: str, label: str, style: dict[str, str]) -> str:
    fields = {"label": label, **style}
    attributes = ", ".join(f"{key}={_quoted(value)}" for key, value in fields.items())
    return f"  {_quoted(name)} [{attributes}];"


def _edge(source: str, target: str, label: str) -> str:
    return f"  {_quoted(source)} -> {_quoted(target)} [label={_quoted(label)}];"


def draw_net(
    caffe_net: caffe_pb2.NetParameter,
    rankdir: str,
    ext: str = "png",
    phase: int | None = None,
    display_lrm: bool = False,
) -> bytes:
    """Return the drawing of a NetParameter in the format ``ext``; see get_pydot_graph."""
    graph = get_pydot_graph(caffe_net, rankdir, phase=phase, display_lrm=display_lrm)
    return graph.create(format=ext)


def draw_net_to_file(
    caffe_net: caffe_pb2.NetParameter,
    filename: str | os.PathLike[str],
    rankdir: str = "LR",
    phase: int | None = None,
    display_lrm: bool = False,
) -> None:
    """Draw a NetParameter to a file in the format of its ending; see get_pydot_graph.

    ``.raw`` writes the graph in Graphviz's language.
    """
    path = os.fspath(filename)
    graph = get_pydot_graph(caffe_net, rankdir, phase=phase, display_lrm=display_lrm)
    graph.write(path, format=path.rpartition(".")[2])


def svg_element(file: bytes) -> str:
    """Return the drawing in an SVG file for a page in HTML, without the head of the file."""
    text = file.decode()
    return text[text.index("<svg") :]
