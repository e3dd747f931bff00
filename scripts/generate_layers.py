"""Write docs/layers.md, the catalogue of layers, from the layers' docstrings and the schema.

Run it after a change to either (``make catalogue``).  Needs grpcio-tools.
"""

from __future__ import annotations

import inspect
import re
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
from google.protobuf import descriptor_pb2, text_format
from google.protobuf.descriptor import Descriptor

from pycaffe_dist.layers import layer_class, layer_types
from pycaffe_dist.layers.base import Arity, Layer
from pycaffe_dist.schema import caffe_pb2

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "docs" / "layers.md"
GOLDEN = ROOT / "tests" / "golden"
# The fields' numbers in descriptor.proto, which comments' places are made of.
_MESSAGES, _FIELDS = 4, 2

_HEAD = """# Layers

What each layer type computes, the fields that it reads, and an example. Every type also reads
`name`, `bottom`, `top`, `loss_weight`, `param`, `include`, `exclude` and `propagate_down`: see
`LayerParameter` in `proto/caffe.proto`. A golden case compares a layer with outputs that Caffe, or
the fork that the layer comes from, computed. Tests check every gradient numerically, and every GPU
kernel on an emulated GPU. `make catalogue` writes this page from the sources.
"""


def comments() -> dict[str, str]:
    """Return the comments of proto/caffe.proto by ``Message.field``."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "caffe.desc"
        arguments = [f"--proto_path={ROOT / 'proto'}", f"--descriptor_set_out={output}"]
        if protoc.main(["protoc", "--include_source_info", *arguments, "caffe.proto"]):
            raise SystemExit("protoc failed")
        file = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file[0]
    found = {}
    for location in file.source_code_info.location:
        path = list(location.path)
        if len(path) == 4 and path[0] == _MESSAGES and path[2] == _FIELDS:
            message = file.message_type[path[1]]
            text = location.leading_comments.replace("Forks.", "", 1)
            found[f"{message.name}.{message.field[path[3]].name}"] = " ".join(text.split())
    return found


def golden_cases() -> dict[str, list[str]]:
    """Return the layers of the golden cases as prototxts, by type: the shortest one first."""
    found: dict[str, list[str]] = {}
    for path in sorted(GOLDEN.glob("*/*.npz")):
        with np.load(path) as archive:
            if "prototxt" not in archive:
                continue
            net = text_format.Parse(str(archive["prototxt"]), caffe_pb2.NetParameter())
        layer = net.layer[-1]
        text = text_format.MessageToString(caffe_pb2.NetParameter(layer=[layer])).rstrip()
        found.setdefault(layer.type, []).append(text)
    return {kind: sorted(texts, key=len) for kind, texts in found.items()}


def messages_of(kind: type[Layer]) -> list[str]:
    """Return the fields of LayerParameter, such as ``pooling_param``, that a layer's code reads."""
    known = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
    sources = [
        inspect.getsource(base)
        for base in kind.__mro__
        if issubclass(base, Layer) and base is not Layer
    ]
    names = re.findall(r"\bparam\.(\w+_param)\b", "\n".join(sources))
    return [name for name in dict.fromkeys(names) if name in known]


def table(
    message: Descriptor, title: str, texts: dict[str, str], chosen: Collection[str] = ()
) -> Iterator[str]:
    """Yield the lines of a message's table of fields, or of the ``chosen`` ones."""
    yield f"| {title} | type | default | |"
    yield "| --- | --- | --- | --- |"
    proto = descriptor_pb2.DescriptorProto()
    message.CopyToProto(proto)
    for field in proto.field:
        if chosen and field.name not in chosen:
            continue
        kind = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)[5:].lower()
        if field.type_name:
            kind = field.type_name.rsplit(".", 1)[1]
        enum = message.fields_by_name[field.name].enum_type
        if enum is not None:
            kind = ", ".join(value.name for value in enum.values)
        if field.label == field.LABEL_REPEATED:
            kind += ", repeated"
        meaning = texts.get(f"{message.name}.{field.name}", "").replace("|", "\\|")
        yield f"| `{field.name}` | {kind} | {field.default_value} | {meaning} |"
    yield ""


def _describe(name: str, texts: dict[str, str], cases: list[str]) -> Iterator[str]:
    """Yield the lines about one type."""
    kind = layer_class(name)
    yield f"### {name}\n"
    yield inspect.cleandoc(kind.__doc__ or "").replace("``", "`") + "\n"
    # What depends on the options is a property, which a class does not know.
    numbers = {"bottoms": kind.bottoms, "tops": kind.tops}
    places = [f"{word}: {number}" for word, number in numbers.items() if isinstance(number, Arity)]
    if kind.in_place is True:
        places.append("may work in place")
    if kind.has_backward is False:
        places.append("no gradient")
    if kind.host_only:
        places.append("computed on the host, also with --gpu")
    if cases:
        places.append(f"golden cases: {len(cases)}")
    if places:
        yield "; ".join(places).capitalize() + ".\n"
    for field in messages_of(kind):
        message = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name[field].message_type
        yield from table(message, f"`{field}`", texts)
    if cases:
        yield f"```\n{cases[0]}\n```\n"


def catalogue() -> str:
    """Return the page."""
    texts, cases = comments(), golden_cases()
    families: dict[str, list[str]] = {}
    for name in layer_types():
        families.setdefault(layer_class(name).__module__, []).append(name)
    lines = [_HEAD, ", ".join(f"[{name}](#{name.lower()})" for name in layer_types()) + ".\n"]
    for module, names in sorted(families.items()):
        title = (sys.modules[module].__doc__ or module).strip().splitlines()[0].rstrip(".")
        lines.append(f"## {title.split(': ')[0]}\n")
        for name in names:
            lines.extend(_describe(name, texts, cases.get(name, [])))
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(catalogue())
