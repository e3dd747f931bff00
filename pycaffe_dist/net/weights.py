"""Loads and saves weights by layer name; checks them before copying."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import WeightsError
from pycaffe_dist.layers import Layer
from pycaffe_dist.log import logger
from pycaffe_dist.schema import binary
from pycaffe_dist.snapshot import caffemodel

if TYPE_CHECKING:
    from pycaffe_dist.net.net import Net
    from pycaffe_dist.schema.caffe_pb2 import LayerParameter


# A log line lists no more layers.
_MOST_NAMES = 12


def blobs_of(layer_param: LayerParameter, dtype: np.dtype) -> list[Blob]:
    """Return the blobs in a LayerParameter."""
    blobs = []
    for proto in layer_param.blobs:
        array = binary.blob_to_array(proto)
        blob = Blob(array.shape, dtype)
        with device.use(device.HOST):
            blob.data[...] = array
        blobs.append(blob)
    return blobs


def check_fit(layer: Layer, shapes: list[tuple[int, ...]], verb: str, origin: str = "") -> None:
    """Raise WeightsError unless arrays of these shapes can be ``verb`` into the layer's blobs."""
    where = f"{origin}: " if origin else ""
    if len(shapes) != len(layer.blobs):
        raise WeightsError(
            f"{where}layer '{layer.name}' ({layer.type}) has {len(layer.blobs)} parameter(s); "
            f"{len(shapes)} cannot be {verb} into it"
        )
    for index, (shape, blob) in enumerate(zip(shapes, layer.blobs)):
        if not same_shape(shape, blob.shape):
            raise WeightsError(
                f"{where}parameter {index} of layer '{layer.name}' cannot be {verb}: the source "
                f"has shape {_words(shape)}, the net needs {_words(blob.shape)}; to learn this "
                "layer from scratch, give it another name"
            )


def same_shape(source: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Compare shapes as Caffe does: old files pad shapes with ones in front to four axes.

    Besides, BN's parameters are (1, C) in yjxiong/caffe and (1, C, 1, 1) in hszhao/PSPNet.
    """
    if source == target or (source[:1] == (1,) and len(source) == 2 and target == (*source, 1, 1)):
        return True
    padded = (1,) * (4 - len(target)) + target
    return len(source) == 4 and source == padded


def _words(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def load(net: Net, path: str) -> list[str]:
    """Copy the weights of same-named layers from a file into ``net``; see Net.load_weights."""
    mine = {node.name: node.layer for node in net.nodes}
    copies: list[tuple[Blob, np.ndarray]] = []
    missing = {name for name, layer in mine.items() if layer.blobs}
    unused = []
    for source in caffemodel.load_weights(path):
        layer = mine.get(source.name)
        if layer is None:
            logger.info("Ignoring source layer %s", source.name)
            unused += [source.name] if source.blobs else []
            continue
        arrays = _with_shared(net, layer, source.blobs)
        check_fit(layer, [array.shape for array in arrays], "copied", path)
        copies += zip(layer.blobs, arrays)
        missing.discard(source.name)
    if not copies:
        logger.warning("%s has no weights for any layer of net '%s'", path, net.name)
    for blob, array in copies:
        blob.data[...] = array.reshape(blob.shape)
    fresh = [name for name in mine if name in missing]
    loaded = [name for name, layer in mine.items() if layer.blobs and name not in missing]
    for names, what in (
        (loaded, "loaded"),
        (fresh, "not in the file: fresh"),
        (unused, "not in the net: unused"),
    ):
        logger.info("%s: %d layer(s) %s%s", path, len(names), what, _list(names))
    return fresh


def _list(names: list[str]) -> str:
    """Return names for a log line, not all of a long list."""
    if len(names) > _MOST_NAMES:
        names = [*names[: _MOST_NAMES - 1], "…", names[-1]]
    return f": {', '.join(names)}" if names else ""


def _with_shared(net: Net, layer: Layer, arrays: Sequence[Any]) -> list[Any]:
    """Fill in shared parameters, which an HDF5 file has only in the layer that owns them."""
    owned = {(p.layer_index, p.index) for p in net.parameters}
    index = net.layer_index(layer.name)
    arrays = [*arrays] + [None] * (len(layer.blobs) - len(arrays))
    return [
        layer.blobs[k].read_data() if array is None and (index, k) not in owned else array
        for k, array in enumerate(arrays)
        if array is not None or (index, k) not in owned
    ]


def save(net: Net, path: str, write_diff: bool, as_hdf5: bool) -> None:
    """Write the weights of ``net`` to a file; see Net.save_weights."""
    caffemodel.save_weights(path, net.name, collect(net, write_diff), as_hdf5)


def collect(
    net: Net,
    write_diff: bool,
    copied: Callable[[np.ndarray], np.ndarray] = lambda array: array,
    instead: Mapping[tuple[int, int], Blob] = MappingProxyType({}),
) -> list[caffemodel.LayerWeights]:
    """Return the weights of ``net``, on request with gradients; ``copied`` may copy them.

    Blobs ``instead`` of the net's count by the numbers of layer and blob.
    """
    owned = {(parameter.layer_index, parameter.index) for parameter in net.parameters}
    layers = []
    for number, node in enumerate(net.nodes):
        blobs = node.layer.blobs
        layers.append(
            caffemodel.LayerWeights(
                name=node.name,
                type=node.layer.type,
                blobs=[
                    copied(instead.get((number, k), blob).read_data()).reshape(blob.shape)
                    for k, blob in enumerate(blobs)
                ],
                diffs=[copied(blob.read_diff()) for blob in blobs] if write_diff else None,
                param=node.layer.param,
                shared=frozenset(k for k in range(len(blobs)) if (number, k) not in owned),
            )
        )
    return layers
