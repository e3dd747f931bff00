"""Weights on disk: .caffemodel, a binary NetParameter with blobs, and .caffemodel.h5."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist import atomic, hdf5
from pycaffe_dist.errors import SnapshotError
from pycaffe_dist.schema import binary, caffe_pb2, wire
from pycaffe_dist.schema.reading import is_hdf5, require_file

if TYPE_CHECKING:
    import h5py

_Path = str | os.PathLike[str]


@dataclass(frozen=True)
class LayerWeights:
    """The parameters of one layer.

    ``blobs`` has one array per parameter.  An HDF5 file does not contain parameters whose owner is
    another layer: they are None, or missing at the end.  ``diffs`` are the gradients, with the same
    shapes, if requested.  ``type`` is empty if the file does not contain it.

    For writing only: ``param`` is the layer's definition, part of a binary file, and ``shared`` the
    indices of blobs whose owner is another layer.
    """

    name: str
    type: str
    blobs: Sequence[np.ndarray | None]
    diffs: Sequence[np.ndarray | None] | None = None
    param: caffe_pb2.LayerParameter | None = None
    shared: frozenset[int] = frozenset()


def save_weights(
    path: _Path, net_name: str, layers: Sequence[LayerWeights], as_hdf5: bool = False
) -> None:
    """Write weights atomically, as HDF5 on request or when the path ends in .h5.

    Layers without parameters are written too, as Caffe does.  Raises SnapshotError.
    """
    with atomic.replacing(path) as new:
        fill_weights(new, path, net_name, layers, as_hdf5)


def fill_weights(
    new: Path, path: _Path, net_name: str, layers: Sequence[LayerWeights], as_hdf5: bool = False
) -> None:
    """Write the weights file ``path`` to ``new``, the path of `atomic.replacing`, and read it back.

    Raises OSError, or SnapshotError for weights too large for a binary file.
    """
    if as_hdf5 or os.fspath(path).endswith(".h5"):
        _fill_hdf5(new, layers)
    else:
        parts = _encoded(path, net_name, layers)
        binary.check_size(path, parts)
        atomic.fill(new, parts)


def require_weights(path: _Path) -> None:
    """Raise SnapshotError if a file of weights is missing."""
    require_file(path, lambda message: SnapshotError(f"{os.fspath(path)}: {message}"))


def load_weights(path: _Path) -> list[LayerWeights]:
    """Return the weights in a file of either kind and any version, recognized by its contents.

    Blobs of old files always have four axes, padded with ones in front.
    Raises SnapshotError.
    """
    if is_hdf5(path):
        with hdf5.reading(path) as file:
            return list(_layers_in(file, os.fspath(path)))
    layers = []
    for layer in binary.read_net_weights(path).layer:
        try:
            blobs = [binary.blob_to_array(blob) for blob in layer.blobs]
            diffs = [binary.blob_to_diff(blob) for blob in layer.blobs]
        except SnapshotError as error:
            raise SnapshotError(f"{os.fspath(path)}: layer '{layer.name}': {error}") from None
        has_diffs = any(diff is not None for diff in diffs)
        layers.append(LayerWeights(layer.name, layer.type, blobs, diffs if has_diffs else None))
    return layers


def _encoded(path: _Path, net_name: str, layers: Sequence[LayerWeights]) -> list[wire.Part]:
    """Return a NetParameter in parts, without a copy of the arrays."""
    net: list[wire.Part] = [caffe_pb2.NetParameter(name=net_name).SerializeToString()]
    for layer in layers:
        param = caffe_pb2.LayerParameter()
        if layer.param is not None:
            param.CopyFrom(layer.param)
            param.ClearField("blobs")
        param.name, param.type = layer.name, layer.type
        parts: list[wire.Part] = [param.SerializeToString()]
        for index, blob in enumerate(layer.blobs):
            if blob is None:
                raise SnapshotError(f"{path}: layer '{layer.name}' has no array for blob {index}")
            diff = None if layer.diffs is None else layer.diffs[index]
            parts += wire.nested(param.BLOBS_FIELD_NUMBER, binary.blob_parts(blob, diff))
        net += wire.nested(caffe_pb2.NetParameter.LAYER_FIELD_NUMBER, parts)
    return net


def _fill_hdf5(new: Path, layers: Sequence[LayerWeights]) -> None:
    arrays: dict[str, np.ndarray] = {}
    with hdf5.filling(new) as file:
        data = file.create_group("data")
        with_diff = any(layer.diffs is not None for layer in layers)
        diff = file.create_group("diff") if with_diff else None
        for layer in layers:
            data.require_group(layer.name)
            for index, blob in enumerate(layer.blobs):
                if index not in layer.shared and blob is not None:
                    arrays[f"data/{layer.name}/{index}"] = blob
            if diff is not None:
                diff.require_group(layer.name)
                for index, gradient in enumerate(layer.diffs or ()):
                    if gradient is not None:
                        arrays[f"diff/{layer.name}/{index}"] = gradient
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
    hdf5.check(new, arrays)


def _layers_in(file: h5py.File, path: str) -> Iterator[LayerWeights]:
    import h5py

    data = file.get("data")
    if not isinstance(data, h5py.Group):
        raise SnapshotError(f"{path}: has no group /data, so it is not a .caffemodel.h5")
    diff = file.get("diff")
    names: list[str] = []
    data.visit(names.append)
    for name in names:
        group = data[name]
        if not isinstance(group, h5py.Group):
            continue
        blobs = hdf5.read_numbered(group)
        # A layer named a/b makes a group a that is not a layer.
        if not blobs and len(group):
            continue
        diffs = hdf5.read_numbered(diff[name]) if diff is not None and name in diff else None
        yield LayerWeights(name, "", blobs, diffs)
