"""Old nets and solvers are upgraded as by Caffe's own tools."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pycaffe_dist.errors import PrototxtError
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.schema.upgrade import upgrade_net, upgrade_solver, v0, v1

LEGACY = Path(__file__).resolve().parents[1] / "golden" / "legacy"


@pytest.mark.parametrize("name", ["batchnorm_v2old", "lenet_v0", "lenet_v1"])
def test_nets_as_caffe_upgrades_them(name):
    expected = (LEGACY / f"{name}.upgraded.prototxt").read_text()
    net = text.read_net(LEGACY / f"{name}.prototxt")
    assert text.to_text(net) == expected
    assert upgrade_net(net).notes == ()


def test_solver_as_caffe_upgrades_it():
    expected = (LEGACY / "solver_old.upgraded.prototxt").read_text()
    solver = text.read_solver(LEGACY / "solver_old.prototxt")
    solver.ClearField("snapshot_prefix")  # Caffe's tool leaves this to training
    assert text.to_text(solver) == expected
    assert upgrade_solver(solver) == ()


def _lines(name: str) -> list[int]:
    net, places = text.read_net_with_places(LEGACY / name)
    return [int(places.layer(i).rsplit(":", 1)[1]) for i in range(len(net.layer))]


def test_places_survive_inserted_and_removed_layers():
    assert _lines("lenet_v0.prototxt") == [2, 4, 5, 6, 7, 8, 9, 10, 11]  # no padding layer
    assert _lines("lenet_v1.prototxt") == list(range(2, 12))  # the Input layer is first


def test_notes_are_logged(caplog):
    text.read_net(LEGACY / "lenet_v1.prototxt")
    for what in ("V1 layers", "transform_param", "Input layer"):
        assert any(what in message for message in caplog.messages)


def test_every_old_type_has_a_new_name():
    types = caffe_pb2.V1LayerParameter.LayerType.keys()
    assert sorted(types) == sorted(v1.TYPES)
    assert set(v0.TYPES.values()) <= set(types)


V0_FIELDS = caffe_pb2.V0LayerParameter.DESCRIPTOR.fields_by_name
IGNORED_BY_CAFFE_TOO = {"new_num", "new_channels"}


@pytest.mark.parametrize("name", sorted(set(V0_FIELDS) - IGNORED_BY_CAFFE_TOO - {"type"}))
def test_every_v0_field_finds_its_place_for_some_type(name):
    field = V0_FIELDS[name]
    left_out = []
    for type_name in v0.TYPES:
        net = caffe_pb2.NetParameter()
        layer = net.layers.add().layer
        layer.type = type_name
        value = "x" if field.type == field.TYPE_STRING else 1
        if field.message_type is not None:
            value = getattr(caffe_pb2, field.message_type.name)()
        v1.put(layer, name, value)
        notes = upgrade_net(net).notes
        left_out.append(any("left out" in note for note in notes))
    assert not all(left_out)


def test_blobs_of_binary_nets_are_kept():
    net = caffe_pb2.NetParameter()
    old = net.layers.add(name="ip", type=caffe_pb2.V1LayerParameter.INNER_PRODUCT)
    old.blobs.add(num=1, channels=1, height=1, width=2, data=[1, 2])
    oldest = net.layers.add(bottom=["ip"], top=["c"]).layer
    oldest.name, oldest.type, oldest.pad = "c", "conv", 1
    oldest.blobs.add(data=[3])
    net.layers[0].top.append("ip")
    upgrade_net(net)
    assert [(layer.name, layer.type) for layer in net.layer] == [
        ("ip", "InnerProduct"), ("c", "Convolution"),
    ]  # fmt: skip
    assert [list(layer.blobs[0].data) for layer in net.layer] == [[1, 2], [3]]
    assert list(net.layer[1].convolution_param.pad) == [1]


def test_inputs_without_shapes_are_removed():
    net = caffe_pb2.NetParameter(input=["data"])
    net.layer.add(name="conv", bottom=["data"])
    assert upgrade_net(net).origins == (0,)
    assert not net.input
    assert len(net.layer) == 1


def test_several_inputs():
    net = caffe_pb2.NetParameter(input=["a", "b"], input_dim=[1, 2, 3, 4, 5, 6, 7, 8])
    upgrade_net(net)
    assert list(net.layer[0].top) == ["a", "b"]
    assert [list(s.dim) for s in net.layer[0].input_param.shape] == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_fields_that_a_v0_type_lacks_are_left_out_and_noted():
    net = caffe_pb2.NetParameter()
    layer = net.layers.add(top=["x"]).layer
    layer.name, layer.type, layer.num_output = "d", "dropout", 3
    notes = upgrade_net(net).notes
    assert "left out num_output of layer 'd': dropout has no such field" in notes


ERRORS = [
    (
        'layers { name: "a" type: RELU }\nlayer { name: "b" type: "ReLU" }',
        "has 1 'layer' and 1 old 'layers' entries",
    ),
    (
        '\nlayers { layer { name: "c" type: "convv" } }',
        "net.prototxt:2: layer 'c' has the unknown V0 type 'convv'; did you mean 'conv'?",
    ),
    ('layers { bottom: "x" layer { name: "c" type: "conv" } }', "unknown blob 'x'"),
    (
        'input: "x" layers { bottom: "x" top: "p" layer { name: "p" type: "padding" pad: 1 } }\n'
        'layers { bottom: "p" top: "r" layer { name: "r" type: "relu" } }',
        "net.prototxt:2: layer 'r' (relu) reads padding layer 'p'",
    ),
    ('input: "x" input_dim: 1 input_dim: 2', "has 1 input fields"),
    ('input: "x" input: "y" input_shape { dim: 1 }', "has 2 input fields"),
]


@pytest.mark.parametrize(("prototxt", "message"), ERRORS)
def test_fields_that_cannot_be_upgraded(tmp_path, prototxt, message):
    path = tmp_path / "net.prototxt"
    path.write_text(prototxt)
    with pytest.raises(PrototxtError, match=re.escape(message)):
        text.read_net(path)


def test_solver_with_both_types():
    with pytest.raises(PrototxtError, match="both type and the old solver_type"):
        text_solver = text.parse('type: "SGD" solver_type: ADAM', caffe_pb2.SolverParameter())
        upgrade_solver(text_solver)


def test_nets_within_a_solver_are_upgraded():
    solver = caffe_pb2.SolverParameter()
    solver.net_param.layers.add(name="r", type=caffe_pb2.V1LayerParameter.RELU)
    solver.test_net_param.add().layers.add(name="t", type=caffe_pb2.V1LayerParameter.TANH)
    upgrade_solver(solver)
    assert solver.net_param.layer[0].type == "ReLU"
    assert solver.test_net_param[0].layer[0].type == "TanH"
    assert not solver.HasField("train_net_param")
