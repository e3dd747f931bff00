"""Reads binary protobuf files and moves arrays between blobs and NumPy."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from pycaffe_dist.errors import DataError, PcaffeError, PrototxtError, SnapshotError
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2, dialects, wire
from pycaffe_dist.schema.reading import HDF5_MAGIC, looks_like_text, read_bytes
from pycaffe_dist.schema.upgrade import upgrade_net

AnyMessage = TypeVar("AnyMessage", bound=Message)
_Path = str | os.PathLike[str]
_Fail = Callable[[str], PcaffeError]

# protobuf, in Caffe and here, reads and writes messages only up to this size.
MAX_BYTES = 2**31 - 1

_KINDS = {
    "NetParameter": "a .caffemodel",
    "SolverState": "a .solverstate",
    "BlobProto": "a .binaryproto",
}


def read_net_weights(path: _Path) -> caffe_pb2.NetParameter:
    """Return the net of a binary .caffemodel, upgraded to today's layers, with its blobs.

    Other fields of forks may be missing.  Raises SnapshotError.
    """
    fail = _failing(SnapshotError, os.fspath(path))
    return _upgraded(path, _read(path, caffe_pb2.NetParameter(), fail, _parse_blobs), fail)


def read_net(path: _Path) -> caffe_pb2.NetParameter:
    """Return all of a binary net, upgraded to today's layers; see `dialects` for those of forks.

    Raises SnapshotError.
    """
    fail = _failing(SnapshotError, os.fspath(path))
    _read(path, caffe_pb2.NetParameter(), fail, _parse_blobs)  # is it a net at all?
    net = caffe_pb2.NetParameter()
    try:
        net.ParseFromString(dialects.unified(read_bytes(path, fail), fail))
    except DecodeError:
        raise fail("has a layer with options of another fork or damaged ones") from None
    return _upgraded(path, net, fail)


def _parse_blobs(data: bytes, net: caffe_pb2.NetParameter) -> bool:
    """Read the names, types and blobs of layers into an empty net; tell if there are any.

    Options of a fork under other numbers may not fit this schema.
    """
    kept = {
        number: [kind.fields_by_name[name].number for name in ("name", "type", "blobs")]
        for number, kind in (
            (caffe_pb2.NetParameter.LAYER_FIELD_NUMBER, caffe_pb2.LayerParameter.DESCRIPTOR),
            (caffe_pb2.NetParameter.LAYERS_FIELD_NUMBER, caffe_pb2.V1LayerParameter.DESCRIPTOR),
        )
    }
    parts: list[wire.Part] = []
    for field in wire.fields(data):
        own = kept.get(field.number)
        parts += (
            [field.whole] if own is None else wire.nested(field.number, wire.only(field.value, own))
        )
    with contextlib.suppress(DecodeError):
        net.Clear()
        net.ParseFromString(b"".join(parts))
        return any(layer.blobs for layer in (*net.layer, *net.layers))
    return False


def _upgraded(path: _Path, net: caffe_pb2.NetParameter, fail: _Fail) -> caffe_pb2.NetParameter:
    file = os.fspath(path)
    if not net.layer and not net.layers:
        raise fail("holds no layers, so it is not a .caffemodel")
    try:
        notes = upgrade_net(net, file).notes
    except PrototxtError as error:
        raise SnapshotError(str(error)) from None
    for note in notes:
        logger.info("%s: %s", file, note)
    return net


def read_solver_state(path: _Path) -> caffe_pb2.SolverState:
    """Return the state in a binary .solverstate; raises SnapshotError."""
    fail = _failing(SnapshotError, os.fspath(path))
    state = _read(path, caffe_pb2.SolverState(), fail)
    if not state.HasField("iter"):
        raise fail("holds no iteration, so it is not a .solverstate")
    return state


def read_blob(path: _Path) -> caffe_pb2.BlobProto:
    """Return the blob in a .binaryproto, such as a mean image; its values fit its shape.

    Raises DataError.
    """
    fail = _failing(DataError, os.fspath(path))
    blob = _read(path, caffe_pb2.BlobProto(), fail)
    count = len(blob.double_data) or len(blob.data)
    if not count or count != math.prod(blob_shape(blob)):
        raise fail(
            f"is not a .binaryproto: its shape is {_words(blob_shape(blob))}, "
            f"but it holds {count} values"
        )
    return blob


def _failing(error: type[PcaffeError], file: str) -> _Fail:
    return lambda message: error(f"{file}: {message}")


def _read(
    path: _Path,
    message: AnyMessage,
    fail: _Fail,
    otherwise: Callable[[bytes, AnyMessage], bool] | None = None,
) -> AnyMessage:
    """Read a file into an empty message, ``otherwise`` if it does not fit and that succeeds."""
    data = read_bytes(path, fail)
    expected = _KINDS[message.DESCRIPTOR.name]
    if data.startswith(HDF5_MAGIC):
        raise fail(f"is an HDF5 file, expected {expected}")
    if len(data) > MAX_BYTES:
        raise fail(f"has {len(data)} bytes; protobuf's limit is 2 GB, so use HDF5 (.h5)")
    try:
        message.ParseFromString(data)
    except DecodeError:
        needed = wire.length_if_truncated(data)
        if otherwise is not None and not needed and otherwise(data, message):
            return message
        if needed and not looks_like_text(data):
            raise fail(f"is cut off: {len(data)} of at least {needed} bytes are there") from None
        what = "a text file" if looks_like_text(data) else "damaged or of another kind"
        raise fail(f"is {what}, expected {expected}") from None
    return message


def blob_shape(blob: caffe_pb2.BlobProto) -> tuple[int, ...]:
    """Return the shape of a blob; old blobs without ``shape`` have the four axes num to width."""
    if any(blob.HasField(name) for name in ("num", "channels", "height", "width")):
        return (blob.num, blob.channels, blob.height, blob.width)
    return tuple(blob.shape.dim)


def blob_to_array(blob: caffe_pb2.BlobProto) -> np.ndarray:
    """Return a blob's values in its shape, as float32, or float64 if stored as double.

    Raises SnapshotError when the number of values does not fit the shape.
    """
    return _shaped(_numbers(blob, "data"), blob, "values")


def blob_to_diff(blob: caffe_pb2.BlobProto) -> np.ndarray | None:
    """Return a blob's gradient like `blob_to_array`, None if it has none."""
    if not blob.diff and not blob.double_diff:
        return None
    return _shaped(_numbers(blob, "diff"), blob, "gradients")


def _numbers(blob: caffe_pb2.BlobProto, name: str) -> np.ndarray:
    """Return a repeated field as an array.

    Reads the encoded blob, because protobuf before version 7 returns numbers one by one, which
    takes 40 times longer.
    """
    double = bool(getattr(blob, f"double_{name}"))
    number = blob.DESCRIPTOR.fields_by_name[f"double_{name}" if double else name].number
    return wire.unpacked(blob.SerializeToString(), number, "<f8" if double else "<f4")


def _shaped(values: np.ndarray, blob: caffe_pb2.BlobProto, what: str) -> np.ndarray:
    shape = blob_shape(blob)
    if values.size != math.prod(shape):
        raise SnapshotError(f"a blob of shape {_words(shape)} holds {values.size} {what}")
    return values.reshape(shape)


def _words(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def array_to_blob(values: np.ndarray, diff: np.ndarray | None = None) -> caffe_pb2.BlobProto:
    """Return a blob that holds an array and, if given, its gradient of the same shape.

    float64 is stored as double, all else as float.
    """
    return caffe_pb2.BlobProto.FromString(b"".join(blob_parts(values, diff)))


def blob_parts(values: np.ndarray, diff: np.ndarray | None = None) -> list[wire.Part]:
    """Return the encoded form of `array_to_blob`, in parts.

    Giving protobuf the numbers one by one takes 70 times longer, and its encoder copies them
    several times.
    """
    number, kind = (8, "<f8") if values.dtype == np.float64 else (5, "<f4")
    parts: list[wire.Part] = [caffe_pb2.BlobProto(shape={"dim": values.shape}).SerializeToString()]
    parts += wire.packed(number, np.ascontiguousarray(values, kind))
    if diff is not None:
        parts += wire.packed(number + 1, np.ascontiguousarray(diff, kind))
    return parts


def check_size(path: _Path, parts: list[wire.Part]) -> None:
    """Raise SnapshotError when a message is too large for protobuf to read."""
    size = wire.size(parts)
    if size > MAX_BYTES:
        raise SnapshotError(
            f"{os.fspath(path)}: would need {size} bytes, more than the 2 GB that a binary "
            "snapshot can have; set snapshot_format: HDF5"
        )
