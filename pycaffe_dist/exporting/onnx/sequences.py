"""Recurrent layers in ONNX: a Scan over the steps, since marks in the middle start sequences."""

from __future__ import annotations

import numpy as np
from onnx import helper

from pycaffe_dist.exporting.onnx.graph import Graph
from pycaffe_dist.exporting.onnx.register import converts
from pycaffe_dist.exporting.steps import Step


def _lstm_step(graph: Graph, gates: str, keep: str, cell: str) -> tuple[str, str]:
    """Return cell and h of a step; gates are input, forget, output and cell input."""
    parts = graph.ops("Split", gates, to=[graph.new() for _ in range(4)], axis=-1, num_outputs=4)
    i, f, o = (graph.op("Sigmoid", part) for part in parts[:3])
    new = graph.op("Mul", i, graph.op("Tanh", parts[3]))
    kept = graph.op("Mul", graph.op("Mul", f, keep), cell)
    cell = graph.op("Add", new, kept)
    return cell, graph.op("Mul", o, graph.op("Tanh", cell))


@converts("LSTMUnit")
def lstm_unit(step: Step, graph: Graph) -> None:
    """One step of an LSTM."""
    cell, gates, marks = step.bottoms
    keep = graph.op("Unsqueeze", marks, [2])
    for value, top in zip(_lstm_step(graph, gates, keep, cell), step.tops):
        graph.op("Identity", value, to=top)


def _scan(
    step: Step, graph: Graph, inputs: str, marks: str, first: list[str], weights: str
) -> list[str]:
    """Add a Scan over the steps; return the last states and all h."""
    body = graph.inner()
    h, c, given, mark = (f"{step.name}:body:{name}" for name in ("h", "c", "gates", "keep"))
    keep = body.op("Unsqueeze", mark, [1])
    gates = body.op("Add", given, body.op("MatMul", body.op("Mul", h, keep), weights))
    if len(first) > 1:
        cell, out = _lstm_step(body, gates, keep, c)
        states = [out, cell]
    else:
        states = [body.op("Tanh", gates)]
    outs = [*states, body.op("Identity", states[0])]
    kind = helper.np_dtype_to_tensor_dtype(graph.dtype)
    loop = body.inner_graph([*[h, c][: len(first)], given, mark], outs, kind)
    results = [graph.new() for _ in outs]
    return graph.ops("Scan", *first, inputs, marks, to=results, body=loop, num_scan_inputs=2)


@converts("LSTM", "Lstm", "RNN")
def recurrent(step: Step, graph: Graph) -> None:
    """The inputs' products with the weights for all steps at once, then a Scan."""
    layer, is_lstm = step.layer, step.type != "RNN"
    exposed = layer.param.recurrent_param.expose_hidden and step.type != "Lstm"
    states = 2 if is_lstm else 1
    x = graph.op("Reshape", step.bottoms[0], [0, 0, -1])
    at = {"Lstm": (0, 2, 1)}.get(step.type, (0, 1, -1 if is_lstm else -3))
    wx, b, wh = (step.blobs[index] for index in at)
    gates = graph.op("MatMul", x, graph.constant(np.ascontiguousarray(wx.T)))
    gates = graph.op("Add", gates, graph.constant(b))
    static = len(step.bottoms) > 2 + exposed * states
    if static:
        flat = graph.op("Reshape", step.bottoms[2], [0, -1])
        fixed = graph.op("MatMul", flat, graph.constant(np.ascontiguousarray(step.blobs[2].T)))
        gates = graph.op("Add", gates, fixed)
    first = _first_states(step, graph, states, exposed, static)
    marks = _marks(step, graph)
    transposed = graph.constant(np.ascontiguousarray(wh.T))
    *last, h = _scan(step, graph, gates, marks, first, transposed)
    if step.type == "RNN":
        weights = graph.constant(np.ascontiguousarray(step.blobs[-2].T))
        y = graph.op("Add", graph.op("MatMul", h, weights), graph.constant(step.blobs[-1]))
        graph.op("Tanh", y, to=step.tops[0])
    else:
        graph.op("Identity", h, to=step.tops[0])
    for value, top in zip(last, step.tops[1:]):
        graph.op("Unsqueeze", value, [0], to=top)


def _first_states(step: Step, graph: Graph, states: int, exposed: bool, static: bool) -> list[str]:
    """Return the exposed states, or zeros: a run does not go on from the one before."""
    if exposed:
        return [graph.op("Squeeze", name, [0]) for name in step.bottoms[2 + static :]]
    streams = graph.sizes(step.bottoms[0], 1, 2)
    hidden = graph.constant(np.array([step.top_shapes[0][2]]))
    shape = graph.op("Concat", streams, hidden, axis=0)
    zeros = graph.op("Expand", graph.constant(np.zeros(1)), shape)
    return [zeros] * states


def _marks(step: Step, graph: Graph) -> str:
    """Return whether sequences go on (steps, streams); without marks all do but the first."""
    shape = graph.sizes(step.bottoms[0], 0, 2)
    if len(step.bottoms) > 1:
        return graph.op("Reshape", step.bottoms[1], shape)
    return graph.op("Expand", graph.constant(np.ones(1)), shape)
