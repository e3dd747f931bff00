"""Runs a net over more samples than fit into one batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist.errors import UsageError

if TYPE_CHECKING:
    from pycaffe_dist.api.net import Net

Arrays = dict[str, np.ndarray]


def batches(net: Net, arrays: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the arrays in parts of the net's batch size, the last one padded with zeros.

    The batch size is the first axis of the net's first blob.
    """
    size = net.blobs[next(iter(net.blobs))].shape[0]
    count = _count(arrays)
    for begin in range(0, count, size):
        part = {name: np.asarray(array[begin : begin + size]) for name, array in arrays.items()}
        missing = size - min(size, count - begin)
        if missing:
            part = {name: _padded(array, missing) for name, array in part.items()}
        yield part


def _padded(array: np.ndarray, missing: int) -> np.ndarray:
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])


def _count(arrays: dict[str, Any]) -> int:
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise UsageError(f"needs arrays that are equally long, found {lengths or 'none'}")
    return next(iter(lengths.values()))


def forward_all(net: Net, blobs: list[str], inputs: dict[str, Any]) -> Arrays:
    """Return the outputs and extra ``blobs`` for all samples; see Net.forward_all."""
    count = _count(inputs)
    parts = [_copies(net.forward(blobs=blobs, **batch)) for batch in batches(net, inputs)]
    return _joined(parts, [*net.outputs, *blobs], count)


def forward_backward_all(
    net: Net, blobs: list[str], diffs: list[str], arrays: dict[str, Any]
) -> tuple[Arrays, Arrays]:
    """Return outputs and diffs for all samples; see Net.forward_backward_all."""
    count = _count(arrays)
    inputs = {name: arrays[name] for name in net.inputs if name in arrays}
    heads = {name: arrays[name] for name in net.outputs if name in arrays}
    outs, backs = [], []
    for forward, backward in itertools.zip_longest(
        batches(net, inputs) if inputs else (),
        batches(net, heads) if heads else (),
        fillvalue=dict[str, Any](),
    ):
        outs.append(_copies(net.forward(blobs=blobs, **forward)))
        backs.append(_copies(net.backward(diffs=diffs, **backward)))
    return (
        _joined(outs, [*net.outputs, *blobs], count),
        _joined(backs, [*net.inputs, *diffs], count),
    )


def _copies(results: Arrays) -> Arrays:
    return {name: array.copy() for name, array in results.items()}


def _joined(parts: list[Arrays], names: list[str], count: int) -> Arrays:
    """Join batches' results sample by sample; a scalar, such as a loss, gives a value per batch."""
    joined = {}
    for name in names:
        arrays = [part[name] for part in parts]
        if not arrays:
            joined[name] = np.empty(0, np.float32)
        elif arrays[0].ndim == 0:
            joined[name] = np.stack(arrays)
        else:
            joined[name] = np.concatenate(arrays)[:count]
    return joined
