"""Binary protobuf files and blobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pycaffe_dist.errors import DataError, SnapshotError
from pycaffe_dist.schema import binary, caffe_pb2, wire

SOLVER = Path(__file__).resolve().parents[1] / "golden" / "solver"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(2, 3, 4), (5,), (), (0, 3), (1, 40000)])
def test_arrays_survive(shape, dtype):
    rng = np.random.default_rng(1)
    values, diff = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    blob = binary.array_to_blob(values, diff)
    np.testing.assert_array_equal(binary.blob_to_array(blob), values)
    assert binary.blob_to_array(blob).shape == shape
    if values.size:
        assert binary.blob_to_array(blob).dtype == dtype
        np.testing.assert_array_equal(binary.blob_to_diff(blob), diff)
    # The same message as protobuf's own encoding of the numbers.
    name = "double_data" if dtype == np.float64 else "data"
    slow = caffe_pb2.BlobProto(shape={"dim": shape}, **{name: values.reshape(-1).tolist()})
    slow.MergeFrom(caffe_pb2.BlobProto(**{name.replace("data", "diff"): diff.reshape(-1).tolist()}))
    assert blob == slow


def test_arrays_that_are_not_contiguous_or_of_another_type():
    values = np.arange(12).reshape(3, 4).T[::2]
    blob = binary.array_to_blob(values)
    np.testing.assert_array_equal(binary.blob_to_array(blob), values)
    assert not blob.double_data
    assert binary.blob_to_diff(blob) is None


def test_old_blobs_have_four_axes():
    blob = caffe_pb2.BlobProto(num=1, channels=1, height=2, width=3, data=range(6))
    assert binary.blob_to_array(blob).shape == (1, 1, 2, 3)
    blob = caffe_pb2.BlobProto(width=3, data=range(3))
    with pytest.raises(SnapshotError, match="a blob of shape 0x0x0x3 holds 3 values"):
        binary.blob_to_array(blob)


def test_reading_a_mean(tmp_path):
    path = tmp_path / "mean.binaryproto"
    mean = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    path.write_bytes(binary.array_to_blob(mean).SerializeToString())
    np.testing.assert_array_equal(binary.blob_to_array(binary.read_blob(path)), mean)


def test_old_nets_are_upgraded(tmp_path):
    net = caffe_pb2.NetParameter(name="old", input=["data"])
    layer = net.layers.add(name="ip", type=caffe_pb2.V1LayerParameter.INNER_PRODUCT)
    layer.blobs.add(num=1, channels=1, height=1, width=2, data=[1, 2])
    path = tmp_path / "old.caffemodel"
    path.write_bytes(net.SerializeToString())
    read = binary.read_net_weights(path)
    assert (read.name, read.layer[0].type) == ("old", "InnerProduct")
    assert binary.blob_to_array(read.layer[0].blobs[0]).shape == (1, 1, 1, 2)


MODEL = (SOLVER / "sgd_iter_10.caffemodel").read_bytes()
STATE = (SOLVER / "sgd_iter_10.solverstate").read_bytes()
HDF5 = (SOLVER / "sgd_iter_10.caffemodel.h5").read_bytes()
BAD_FILES = [
    (b"", "is empty"),
    (MODEL[:-100], f"is cut off: {len(MODEL) - 100} of at least"),
    (b'name: "LeNet"\nlayer { }\n', "is a text file, expected"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs's pointer"),
    (b"\x08" + b"\x80" * 1000, "damaged or of another kind, expected"),
    (HDF5, "is an HDF5 file, expected"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
@pytest.mark.parametrize(
    ("read", "error"),
    [
        (binary.read_net_weights, SnapshotError),
        (binary.read_solver_state, SnapshotError),
        (binary.read_blob, DataError),
    ],
)
def test_files_that_cannot_be_read(tmp_path, content, message, read, error):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(error, match=f"file: .*{message}"):
        read(path)


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (binary.read_net_weights, STATE),
        (binary.read_net_weights, caffe_pb2.BlobProto(num=1, data=[1]).SerializeToString()),
        (binary.read_solver_state, MODEL),
        (binary.read_blob, STATE),
        (binary.read_blob, MODEL),
    ],
)
def test_files_of_another_kind(tmp_path, read, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises((SnapshotError, DataError), match=r"expected|is not a"):
        read(path)


def test_missing_files(tmp_path):
    with pytest.raises(SnapshotError, match="gone: no such file"):
        binary.read_net_weights(tmp_path / "gone")
    with pytest.raises(DataError, match="gone: no such file"):
        binary.read_blob(tmp_path / "gone")


def test_files_beyond_protobufs_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "MAX_BYTES", len(MODEL) - 1)
    path = tmp_path / "large.caffemodel"
    path.write_bytes(MODEL)
    with pytest.raises(SnapshotError, match="protobuf's limit is 2 GB"):
        binary.read_net_weights(path)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**21, 2**31, 2**63 - 1])
def test_varints(value):
    assert wire.varint(value) == caffe_pb2.BlobShape(dim=[value]).SerializeToString()[2:]


def test_a_whole_message_is_not_cut_off():
    assert wire.length_if_truncated(MODEL) == 0
    for length in (1, 10, 1000, len(MODEL) - 1):
        assert wire.length_if_truncated(MODEL[:length]) > length
