"""A table of a net's layers: shapes, parameters, multiplications, memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pycaffe_dist.layers import Layer
from pycaffe_dist.net import Net


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


def summarize(net: Net) -> list[LayerSummary]:
    """Return a row for every layer of a net, except splits."""
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
        rows.append(
            LayerSummary(
                node.name,
                layer.type,
                tuple(blob.shape for blob in node.top),
                sum(blob.count for blob in own),
                sum(blob.count for blob in own if id(blob) not in statistics),
                _macs(layer, node.bottom, node.top),
                sum(blob.count * blob.dtype.itemsize for blob in node.top)
                if not set(map(id, node.top)) & set(map(id, node.bottom))
                else 0,
            )
        )
    return rows


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


def table(rows: list[LayerSummary]) -> str:
    """Return the rows as text, with totals."""
    head = ["layer", "type", "tops", "parameters", "MACs", "memory"]
    cells = [
        [
            row.name,
            row.type,
            " ".join("x".join(map(str, shape)) or "1" for shape in row.shapes),
            f"{row.parameters:,}" if row.parameters else "",
            _short(row.macs) if row.macs else "",
            _size(row.bytes) if row.bytes else "",
        ]
        for row in rows
    ]
    total = [
        "total",
        f"{len(rows)} layers",
        "",
        f"{sum(row.parameters for row in rows):,}",
        _short(sum(row.macs for row in rows)),
        _size(sum(row.bytes for row in rows)),
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, total)]
    line = "  ".join("-" * width for width in widths)
    return "\n".join([_line(head, widths), line, *(_line(c, widths) for c in cells), line,
                      _line(total, widths)])  # fmt: skip


def _line(cells: list[str], widths: list[int]) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells[:3], widths)]
    right = [cell.rjust(width) for cell, width in zip(cells[3:], widths[3:])]
    return "  ".join(left + right).rstrip()


def _short(count: float) -> str:
    for unit in ("", "k", "M", "G"):
        if count < 1000:
            return f"{count:.4g}{unit}"
        count /= 1000
    return f"{count:.4g}T"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
