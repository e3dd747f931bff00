"""The schema agrees with BVLC Caffe 1.0's and its forks', and caffe.desc with the .proto."""

from __future__ import annotations

import csv
import importlib.util
import pickle
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from pycaffe_dist.schema import caffe_pb2

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "tests" / "golden" / "schema"
FIELD = descriptor_pb2.FieldDescriptorProto
# Fields that no Caffe has; forks' fields whose number is taken have 1200 and more.
OUR_NUMBERS = range(1100, 1200)


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto()
    caffe_pb2.DESCRIPTOR.CopyToProto(file)
    return file


def _default(kind: str, text: str) -> str:
    return str(np.float32(text)) if kind == "float" and text else text


def _type(field: FIELD) -> str:
    kind = FIELD.Type.Name(field.type).removeprefix("TYPE_").lower()
    name = field.type_name.removeprefix(".caffe.")
    return f"{kind}:{name}" if kind in ("message", "enum") else kind


def _rows_of_descriptor() -> set[tuple[str, ...]]:
    rows = set()

    def add_enum(name: str, enum: descriptor_pb2.EnumDescriptorProto) -> None:
        rows.update(("enum", name, v.name, str(v.number), "", "", "", "") for v in enum.value)

    for enum in _file().enum_type:
        add_enum(enum.name, enum)
    for message in _file().message_type:
        assert not message.nested_type
        for enum in message.enum_type:
            add_enum(f"{message.name}.{enum.name}", enum)
        for field in message.field:
            if field.number in OUR_NUMBERS:
                continue
            label = FIELD.Label.Name(field.label).removeprefix("LABEL_").lower()
            packed = "packed" if field.options.packed else ""
            head = ("field", message.name, field.name, str(field.number))
            rows.add(
                (*head, label, _type(field), _default(_type(field), field.default_value), packed)
            )
    return rows


def _rows_of_table(name: str) -> set[tuple[str, ...]]:
    rows = set()
    with (TABLES / name).open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            default = _default(row["type"], row["default"] or "")
            packed = "packed" if row["packed"] else ""
            head = (row["kind"], row["message_or_enum"], row["name"], row["number"])
            rows.add((*head, row["label"] or "", row["type"] or "", default, packed))
    return rows


def test_descriptor_has_all_of_caffes_table():
    theirs = _rows_of_table("caffe_schema.tsv")
    assert len(theirs) == 534
    assert sorted(theirs - _rows_of_descriptor()) == []


def test_every_other_field_is_a_forks_or_has_a_number_of_our_own():
    """A fork's field has its type and default, and its number where no other field has it."""
    added = _rows_of_descriptor() - _rows_of_table("caffe_schema.tsv")
    forks = _rows_of_table("fork_schema.tsv")
    renumbered = {(*row[:3], *row[4:]) for row in forks}
    ours = {row for row in added if row not in forks and (*row[:3], *row[4:]) not in renumbered}
    messages = {("field", "SolverParameter"), ("field", "SolverState")}
    assert {row[:2] for row in ours} <= messages, sorted(ours)
    moved = {row for row in added - forks if row[0] == "field"}
    assert min(int(row[3]) for row in moved) > 1000, sorted(moved)


def test_committed_descriptor_set_equals_protocs(tmp_path):
    pytest.importorskip("grpc_tools")
    spec = importlib.util.spec_from_file_location("g", ROOT / "scripts" / "generate_proto.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.generate(tmp_path)
    schema = ROOT / "pycaffe_dist" / "schema"
    parse = descriptor_pb2.FileDescriptorSet.FromString
    assert parse((tmp_path / "caffe.desc").read_bytes()) == parse(
        (schema / "caffe.desc").read_bytes()
    )
    for name in caffe_pb2.DESCRIPTOR.message_types_by_name:
        assert f"\nclass {name}(" in (schema / "caffe_pb2.pyi").read_text()


def test_names_are_the_same_as_in_generated_code():
    assert (caffe_pb2.TRAIN, caffe_pb2.TEST) == (0, 1)
    assert caffe_pb2.Phase.Name(1) == "TEST"
    assert caffe_pb2.SolverParameter.GPU == caffe_pb2.SolverParameter.SolverMode.Value("GPU") == 1
    assert caffe_pb2.V1LayerParameter.LayerType.Name(4) == "CONVOLUTION"
    net = caffe_pb2.NetParameter(name="n")
    net.layer.add(name="conv").convolution_param.kernel_size.append(3)
    assert pickle.loads(pickle.dumps(net)) == net


def test_an_installed_caffe_does_not_collide():
    from google.protobuf import descriptor_pool

    other = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe")
    other.message_type.add(name="NetParameter").field.add(
        name="name", number=7, label=FIELD.LABEL_OPTIONAL, type=FIELD.TYPE_STRING
    )
    descriptor_pool.Default().Add(other)
    theirs = descriptor_pool.Default().FindMessageTypeByName("caffe.NetParameter")
    assert theirs.fields_by_name["name"].number == 7
    assert caffe_pb2.NetParameter.NAME_FIELD_NUMBER == 1
