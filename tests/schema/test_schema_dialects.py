"""Binary nets of forks: fields whose numbers collide, in bytes written by hand."""

from __future__ import annotations

import csv
import struct
from pathlib import Path

import numpy as np
import pytest

from pycaffe_dist.cli.main import main
from pycaffe_dist.errors import SnapshotError
from pycaffe_dist.schema import binary, caffe_pb2, dialects, wire
from pycaffe_dist.snapshot.caffemodel import load_weights

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "schema"


def number(field, value):
    return wire.varint(field << 3) + wire.varint(value)


def real(field, value):
    return wire.varint(field << 3 | 5) + struct.pack("<f", value)


def inside(field, *parts):
    return b"".join(wire.nested(field, list(parts)))


def layer(name, kind, *options):
    blob = caffe_pb2.BlobProto(shape={"dim": [2]}, data=[1.5, 2.5]).SerializeToString()
    return inside(
        100, inside(1, name.encode()), inside(2, kind.encode()), *options, inside(7, blob)
    )


# roi_pooling_param of zhaoweicai/mscnn: its field 147 is swish_param in Caffe 1.0.
ROI = inside(147, number(1, 7), number(2, 6), real(3, 0.125))
# bn_param of yjxiong/caffe: its field 137 is embed_param, whose field 1 is a number.
BN = inside(137, inside(1, real(2, 0.5)), real(4, 0.25))
MALFORMED = inside(137, b"\x0a\x7f\x01")  # ends in the middle of a field


@pytest.fixture
def saved(tmp_path):
    def save(*layers):
        path = tmp_path / "fork.caffemodel"
        path.write_bytes(inside(1, b"net") + b"".join(layers))
        return path

    return save


@pytest.mark.parametrize(
    "options",
    [
        ROI,
        BN,
        number(147, 3),
        real(137, 1.0),
        inside(147, b"some text"),
        MALFORMED,
        inside(40000, MALFORMED),
    ],
    ids=["fits", "nested", "varint", "float", "text", "malformed", "unknown"],
)
def test_weights_load_whatever_a_forks_fields_mean(saved, options):
    path = saved(layer("a", "Strange", options), layer("b", "InnerProduct"))
    for weights, name in zip(load_weights(path), "ab", strict=True):
        assert weights.name == name
        np.testing.assert_array_equal(weights.blobs[0], [1.5, 2.5])


def test_fields_get_our_numbers_by_the_type_of_their_layer(saved, tmp_path):
    path = saved(layer("r", "ROIPooling", ROI), layer("n", "BN", BN), layer("s", "Swish", ROI))
    new = tmp_path / "new.caffemodel"
    assert main(["upgrade_net_proto_binary", str(path), str(new)]) == 0
    net = binary.read_net(new)
    roi, norm, swish = net.layer
    assert (roi.roi_pooling_param.pooled_h, roi.roi_pooling_param.pooled_w) == (7, 6)
    assert roi.roi_pooling_param.spatial_scale == 0.125
    assert not roi.HasField("swish_param")
    assert norm.bn_param.slope_filler.value == 0.5
    assert not norm.HasField("embed_param")
    assert swish.HasField("swish_param")
    assert not swish.HasField("roi_pooling_param")
    for each in net.layer:
        np.testing.assert_array_equal(binary.blob_to_array(each.blobs[0]), [1.5, 2.5])
    assert binary.read_net(new) == net


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("Strange", ROI, "'Strange' and has field 147, which is swish_param or center_loss_param"),
        ("Strange", inside(40000, b""), "field 40000, which no fork known here has"),
        ("ROIPooling", number(147, 3), "'ROIPooling' and has field 147"),
        ("Convolution", BN, "field 137, which is embed_param or bn_param"),
    ],
)
def test_what_cannot_be_told_is_refused(saved, tmp_path, capsys, kind, options, message):
    path = saved(layer("a", kind, options))
    with pytest.raises(SnapshotError, match=message):
        binary.read_net(path)
    new = tmp_path / "new.caffemodel"
    assert main(["upgrade_net_proto_binary", str(path), str(new)]) == 1
    assert not new.exists()
    assert "which it is cannot be told" in capsys.readouterr().err


def test_own_nets_stay_the_same():
    fields = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
    for kind, names in dialects._READ.items():
        param = caffe_pb2.LayerParameter(name="x", type=kind)
        for name in names:
            getattr(param, name).SetInParent()
        net = caffe_pb2.NetParameter(layer=[param])
        data = net.SerializePartialToString()
        assert dialects.unified(data, SnapshotError) == data
    assert set(dialects._NUMBERS) <= set(fields)


def test_the_numbers_are_those_of_the_forks():
    """The table of the forks' schema has each number that differs from ours."""
    fields = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
    found: dict[str, set[int]] = {}
    with (GOLDEN / "fork_schema.tsv").open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            name = row["name"]
            if row["message_or_enum"] != "LayerParameter" or name not in fields:
                continue
            if int(row["number"]) != fields[name].number:
                found.setdefault(name, set()).add(int(row["number"]))
    assert {name: set(numbers) for name, numbers in dialects._NUMBERS.items()} == found
