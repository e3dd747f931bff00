"""Nets as graphs that fit a page: layers in place inside their producers, repeated blocks once.

Unlike the drawings of `pycaffe_dist.draw`, which are pycaffe's.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import Protocol

from pycaffe_dist.draw import (
    Graph,
    choose_color_by_layertype,
    get_pooling_types_dict,
    svg_element,
)
from pycaffe_dist.errors import UsageError
from pycaffe_dist.schema import caffe_pb2, text

LayerParameter = caffe_pb2.LayerParameter
_LONGEST_PERIOD = 6  # stages of a block that repeats
_LEAST_SAVED = 3  # nodes
_DATA = "#DDDDDD"
# Drawings of larger nets are too large for a notebook.
_MOST_NODES = 60


class Row(Protocol):
    """What a drawing shows of a layer, if it is known."""

    @property
    def name(self) -> str:
        """The layer's name."""

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """The shapes of its tops."""

    @property
    def parameters(self) -> int:
        """How many values it learns."""


@dataclass
class Node:
    """A layer with those in place on its top; ``inputs`` are the numbers of the nodes it reads."""

    number: int
    layers: list[LayerParameter]
    inputs: list[int]

    @property
    def name(self) -> str:
        """The first layer's name."""
        return self.layers[0].name

    @property
    def title(self) -> str:
        """What the layers do, such as ``Convolution 3x3 /2, 64``."""
        return ", ".join(map(describe, self.layers))

    def likeness(self) -> tuple:
        """Return what nodes of repeated blocks have in common: settings and places of inputs."""
        return self.title, tuple(self.number - other for other in self.inputs)


@dataclass
class Block:
    """Nodes that a drawing shows once in place of ``count`` blocks alike, named ``others``."""

    nodes: list[Node]
    count: int = 1
    others: list[str] = field(default_factory=list)


def nodes_of(layers: Sequence[LayerParameter]) -> list[Node]:
    """Return the nodes of a net's layers, in their order."""
    nodes: list[Node] = []
    maker: dict[str, Node] = {}
    for layer in layers:
        tops, bottoms = list(layer.top), list(layer.bottom)
        if len(tops) == 1 and tops == bottoms and tops[0] in maker:
            maker[tops[0]].layers.append(layer)
            continue
        inputs = dict.fromkeys(maker[name].number for name in bottoms if name in maker)
        node = Node(len(nodes), [layer], [*inputs])
        nodes.append(node)
        maker.update(dict.fromkeys(tops, node))
    return nodes


def describe(layer: LayerParameter) -> str:
    """Return a layer's type with its window and outputs."""
    words = layer.type
    if layer.type in ("Convolution", "Deconvolution"):
        param = layer.convolution_param
        kernel = list(param.kernel_size) or [param.kernel_h, param.kernel_w]
        words += " " + "x".join(map(str, kernel * 2 if len(kernel) == 1 else kernel))
        stride = max([*param.stride, param.stride_h, param.stride_w, 1])
        words += (f" /{stride}" if stride > 1 else "") + f", {param.num_output}"
        if param.group > 1:
            words += f", {param.group} groups"
    elif layer.type == "InnerProduct":
        words += f", {layer.inner_product_param.num_output}"
    elif layer.type == "Pooling":
        pool = layer.pooling_param
        words = f"{get_pooling_types_dict()[pool.pool].lower()} pooling"
        if pool.global_pooling:
            return f"{words}, global"
        words += f" {pool.kernel_size or pool.kernel_h}x{pool.kernel_size or pool.kernel_w}"
        words += f" /{pool.stride}" if pool.stride > 1 else ""
    return words


def blocks_of(nodes: Sequence[Node]) -> list[Block]:
    """Return the nodes in blocks; one that follows itself several times is there once."""
    stages = _stages(nodes)
    alike = [tuple(node.likeness() for node in stage) for stage in stages]
    blocks: list[Block] = []
    place = 0
    while place < len(stages):
        period, count = _best_repeat(alike, place)
        first = [node for stage in stages[place : place + period] for node in stage]
        rest = [stages[place + turn * period][0].name for turn in range(1, count)]
        blocks.append(Block(first, count, rest))
        place += period * count
    return blocks


def _stages(nodes: Sequence[Node]) -> list[list[Node]]:
    """Cut the nodes behind each one through which all later nodes get what they read.

    What comes from layers without bottoms, such as labels, does not count.
    """
    last_read = {number: node.number for node in nodes for number in node.inputs}
    stages: list[list[Node]] = []
    stage: list[Node] = []
    open_until = -1
    for node in nodes:
        stage.append(node)
        if open_until <= node.number:
            stages.append(stage)
            stage = []
        if node.inputs:
            open_until = max(open_until, last_read.get(node.number, -1))
    if stage:
        stages.append(stage)
    return stages


def _best_repeat(alike: Sequence[tuple], place: int) -> tuple[int, int]:
    """Return the number of stages and turns of the repeat from ``place`` on that saves most."""
    best, most = (1, 1), 0
    for period in range(1, _LONGEST_PERIOD + 1):
        block = alike[place : place + period]
        count = 1
        while alike[place + count * period : place + (count + 1) * period] == block:
            count += 1
        saved = (count - 1) * sum(map(len, block))
        if saved >= _LEAST_SAVED and saved > most:
            best, most = (period, count), saved
    return best


def to_graph(nodes: Sequence[Node], fold: bool, layers: Sequence[Row], rankdir: str) -> Graph:
    """Return the graph of nodes, with shapes and parameters of those ``layers`` that are known.

    A node's ``id`` in an SVG is ``layer`` and its number.
    """
    blocks = blocks_of(nodes) if fold else [Block(list(nodes))]
    lines = ["digraph net {", f'  rankdir="{rankdir}"; ranksep=0.3; nodesep=0.25;']
    lines.append('  node [shape=box style="filled,rounded" fontname="Helvetica" fontsize=11];')
    lines.append('  edge [fontname="Helvetica" fontsize=9 arrowsize=0.6];')
    # A node that is not drawn is the node in its place in the block that is.
    shown = {node.number: node.number for block in blocks for node in block.nodes}
    for block in blocks:
        first, size = block.nodes[0].number, len(block.nodes)
        for number in range(first, first + size * block.count):
            shown[number] = first + (number - first) % size
    rows = {row.name: row for row in layers}
    for index, block in enumerate(blocks):
        inner = [_node_line(node, rows) for node in block.nodes]
        if block.count > 1:
            names = ", ".join(block.others[:6]) + (" …" if len(block.others) > 6 else "")
            label = _quoted(f"{block.count} times; also {names}")
            inner = [
                f"subgraph cluster{index} {{ label={label}; style=dashed; fontsize=11;",
                *inner,
                "}",
            ]
        lines += inner
    lines += _edge_lines(nodes, shown, rows)
    return Graph("\n".join([*lines, "}", ""]))


def to_html(layers: Sequence[LayerParameter], known: Sequence[Row] = ()) -> str:
    """Return the drawing of layers as HTML, or a sentence about why there is none."""
    nodes = nodes_of(layers)
    drawn = sum(len(block.nodes) for block in blocks_of(nodes))
    if drawn > _MOST_NODES:
        return (
            f"<p>{drawn} layers are not drawn here: <code>pcaffe draw_net</code> writes a file</p>"
        )
    try:
        drawing = to_graph(nodes, True, known, "LR").create(format="svg")
    except UsageError as error:
        return f"<p>{html.escape(str(error))}</p>"
    return f'<div style="overflow-x: auto">{svg_element(drawing)}</div>'


def _node_line(node: Node, rows: Mapping) -> str:
    words = [node.name, *map(describe, node.layers)]
    learned = sum(rows[layer.name].parameters for layer in node.layers if layer.name in rows)
    if learned:
        words.append(f"{learned:,} parameters")
    kind = node.layers[0].type
    color = choose_color_by_layertype(kind) if node.layers[0].bottom else _DATA
    label = _quoted("\n".join(words))
    return f'  n{node.number} [id="layer{node.number}" fillcolor="{color}" label={label}];'


def _edge_lines(nodes: Sequence[Node], shown: Mapping[int, int], rows: Mapping) -> list[str]:
    found: dict[tuple[int, int], str] = {}
    for node in nodes:
        for source in node.inputs:
            ends = shown[source], shown[node.number]
            if ends[0] < ends[1]:  # the next turn of a block reads the one before
                found.setdefault(ends, _shape(nodes[source], node, rows))
    return [f"  n{a} -> n{b} [label={_quoted(label)}];" for (a, b), label in found.items()]


def _shape(source: Node, reader: Node, rows: Mapping) -> str:
    """Return the shape of the first blob that goes from one node to another."""
    maker = source.layers[0]
    if maker.name not in rows:
        return ""
    for name, shape in zip(maker.top, rows[maker.name].shapes):
        if any(name in layer.bottom for layer in reader.layers):
            return "x".join(map(str, shape))
    return ""


def prototxt(node: Node) -> str:
    """Return the definitions of a node's layers."""
    bodies = (indent(text.to_text(layer), "  ") for layer in node.layers)
    return "\n".join(f"layer {{\n{body}}}" for body in bodies)


def _quoted(words: str) -> str:
    escaped = words.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
