"""Inserts a Split layer after every top with more than one reader (a layer or the loss)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pycaffe_dist.errors import LayerError, did_you_mean
from pycaffe_dist.schema import caffe_pb2

_Place = tuple[int, int]  # (layer index, index among its bottoms or tops)


def insert_splits(
    net_param: caffe_pb2.NetParameter, where: Mapping[str, str]
) -> caffe_pb2.NetParameter:
    """Return a copy of a NetParameter in which every top has at most one reader.

    ``where`` has the layers' ``file:line`` by name.  Raises LayerError for an unknown bottom.

    Layers and blobs are named as Caffe names them: ``BLOB_LAYER_TOP_split`` and
    ``BLOB_LAYER_TOP_split_K``.  For a top with a loss weight, the loss counts as a reader.
    """
    source, readers, loss_weight = _trace(net_param, where)
    split = caffe_pb2.NetParameter()
    split.CopyFrom(net_param)
    del split.layer[:]
    used: Counter[_Place] = Counter()
    for i, layer in enumerate(net_param.layer):
        new = split.layer.add()
        new.CopyFrom(layer)
        for j, blob in enumerate(layer.bottom):
            top = source[i, j]
            if readers[top] > 1:
                producer = net_param.layer[top[0]].name
                new.bottom[j] = _blob_name(producer, blob, top[1], used[top])
                used[top] += 1
        for j, blob in enumerate(layer.top):
            if readers[i, j] > 1:
                weight = loss_weight.get((i, j), 0.0)
                _configure(split.layer.add(), layer.name, blob, j, readers[i, j], weight)
                if weight:
                    # The split's first top has the loss weight now.
                    new.ClearField("loss_weight")
                    used[i, j] += 1
    return split


def _trace(
    net_param: caffe_pb2.NetParameter, where: Mapping[str, str]
) -> tuple[dict[_Place, _Place], Counter[_Place], dict[_Place, float]]:
    """Find every bottom's producer, every top's number of readers and its loss weight."""
    latest: dict[str, _Place] = {}
    source: dict[_Place, _Place] = {}
    readers: Counter[_Place] = Counter()
    loss_weight: dict[_Place, float] = {}
    for i, layer in enumerate(net_param.layer):
        for j, blob in enumerate(layer.bottom):
            if blob not in latest:
                raise LayerError(
                    layer.name,
                    layer.type,
                    f"unknown bottom blob '{blob}' (bottom index {j}): no layer before it has such "
                    f"a top{did_you_mean(blob, latest)}",
                    where.get(layer.name, ""),
                )
            source[i, j] = latest[blob]
            readers[latest[blob]] += 1
        for j, blob in enumerate(layer.top):
            latest[blob] = (i, j)
        for j in range(min(len(layer.loss_weight), len(layer.top))):
            top = latest[layer.top[j]]
            loss_weight[top] = layer.loss_weight[j]
            if loss_weight[top]:
                readers[top] += 1
    return source, readers, loss_weight


def _configure(
    split: Any, layer_name: str, blob: str, top: int, count: int, loss_weight: float
) -> None:
    split.name = f"{blob}_{layer_name}_{top}_split"
    split.type = "Split"
    split.bottom.append(blob)
    for k in range(count):
        split.top.append(_blob_name(layer_name, blob, top, k))
        if loss_weight:
            split.loss_weight.append(loss_weight if k == 0 else 0.0)


def _blob_name(layer_name: str, blob: str, top: int, k: int) -> str:
    return f"{blob}_{layer_name}_{top}_split_{k}"
