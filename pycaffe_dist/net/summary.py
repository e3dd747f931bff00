"""A table of a net's layers: shapes, parameters, multiplications, memory."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

from pycaffe_dist.layers import Layer
from pycaffe_dist.log import fmt_bytes, logger
from pycaffe_dist.net.net import Net
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.table import RULE, aligned, as_html

_LEFT = (0, 1, 2)  # the columns of text


@dataclass(frozen=True)
class LayerSummary:
    """A layer's row: its tops' shapes, and its size and work for one batch.

    ``parameters`` counts values that the layer owns, not values shared with an earlier layer;
    ``macs`` multiply-accumulate operations in forward; ``bytes`` the memory of its tops.
    """

    name: str
    type: str
    shapes: tuple[tuple[int, ...], ...]
    parameters: int
    learned: int
    macs: int
    bytes: int


@dataclass(frozen=True, repr=False)
class Summary:
    """A net's rows, one for every layer except splits."""

    name: str
    phase: str
    layers: tuple[LayerSummary, ...]

    def table(self) -> str:
        """Return the rows as text, with totals."""
        return aligned(self._cells(), _LEFT)

    # Python and notebooks show the table.
    __str__ = __repr__ = table

    def _repr_html_(self) -> str:
        return as_html(self._cells(), _LEFT)

    def _cells(self) -> list[list[str] | None]:
        rows = self.layers
        total = [
            "total",
            f"{len(rows)} layers",
            "",
            f"{sum(row.parameters for row in rows):,}",
            _short(sum(row.macs for row in rows)),
            fmt_bytes(sum(row.bytes for row in rows)),
        ]
        head = ["layer", "type", "tops", "parameters", "MACs", "memory"]
        return [head, RULE, *map(_cells, rows), RULE, total]


def summarize(net: Net) -> Summary:
    """Return a net's table."""
    owners = {id(p.blob): p for p in net.parameters}
    seen: set[int] = set()
    rows = []
    for node in net.nodes:
        layer = node.layer
        own = [blob for blob in layer.blobs if id(blob) in owners and id(blob) not in seen]
        seen |= {id(blob) for blob in own}
        if layer.type == "Split":
            continue
        statistics = {id(blob) for blob in layer.statistics_blobs()}
        in_place = not set(map(id, node.top)).isdisjoint(map(id, node.bottom))
        rows.append(
            LayerSummary(
                node.name,
                layer.type,
                tuple(blob.shape for blob in node.top),
                sum(blob.count for blob in own),
                sum(blob.count for blob in own if id(blob) not in statistics),
                _macs(layer, node.bottom, node.top),
                0 if in_place else sum(blob.count * blob.dtype.itemsize for blob in node.top),
            )
        )
    return Summary(net.name, caffe_pb2.Phase.Name(net.phase), tuple(rows))


def log_layers(net: Net, train_net: Net | None = None) -> None:
    """Log a net's table; of a test net only the first layer and those that ``train_net`` lacks.

    Batch sizes do not count.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    found, words = summarize(net), ""
    if train_net is not None:
        known = set(map(_per_sample, summarize(train_net).layers))
        others = (row for row in found.layers[1:] if _per_sample(row) not in known)
        rows = (*found.layers[:1], *others)
        found, words = replace(found, layers=rows), ", the first and those that the train net lacks"
    logger.info("Layers of net '%s' (%s)%s:\n%s", found.name, found.phase, words, found.table())


def _per_sample(row: LayerSummary) -> tuple[Any, ...]:
    return row.name, row.type, tuple(shape[1:] for shape in row.shapes)


def _macs(layer: Layer, bottom: list[Any], top: list[Any]) -> int:
    """Return a layer's multiply-accumulate operations, 0 for types with few of them."""
    if layer.type == "Convolution":
        return sum(blob.count for blob in top) * math.prod(layer.blobs[0].shape[1:])
    if layer.type == "Deconvolution":
        return sum(blob.count for blob in bottom) * math.prod(layer.blobs[0].shape[1:])
    if layer.type == "InnerProduct":
        outputs, inputs = layer.param.inner_product_param.num_output, layer.blobs[0].count
        return top[0].count // outputs * inputs
    return 0


def _cells(row: LayerSummary) -> list[str]:
    return [
        row.name,
        row.type,
        " ".join("x".join(map(str, shape)) or "1" for shape in row.shapes),
        f"{row.parameters:,}" if row.parameters else "",
        _short(row.macs) if row.macs else "",
        fmt_bytes(row.bytes) if row.bytes else "",
    ]


def _short(count: float) -> str:
    for unit in ("", "k", "M", "G"):
        if count < 1000:
            return f"{count:.4g}{unit}"
        count /= 1000
    return f"{count:.4g}T"
