"""convert_annoset, get_image_size and create_label_map: what they write, and their errors."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from google.protobuf import text_format
from tool_runs import fails, records_of, run

from pycaffe_dist.cli import convert_annoset, create_label_map, get_image_size
from pycaffe_dist.data.label_map import read_label_map
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2

LABEL_MAP = """
item { name: "none_of_the_above" label: 0 display_name: "background" }
item { name: "cat" label: 1 display_name: "cat" }
item { name: "dog" label: 5 display_name: "dog" }
"""
# Label, difficult and corners of each image; the last one has no object.
OBJECTS = [
    [("dog", 0, (2, 3, 20, 17)), ("cat", 1, (0, 0, 40, 30)), ("dog", 1, (5, 6, 7, 8))],
    [("cat", 0, (11, 1, 19, 9))],
    [],
]
SIZES = [(30, 40), (24, 32), (60, 50)]
NUMBERS = {"cat": 1, "dog": 5}


def _xml(size, objects) -> str:
    items = "".join(
        f"<object><name>{name}</name><pose>Left</pose><difficult>{difficult}</difficult><bndbox>"
        + "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), corners))
        + "</bndbox><part><name>head</name><bndbox><xmin>1</xmin></bndbox></part></object>"
        for name, difficult, corners in objects
    )
    height, width = size
    return (
        f"<annotation><size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        f"{items}</annotation>"
    )


def _json(size, objects) -> str:
    items = [
        {"category_id": name, "iscrowd": difficult, "bbox": [x1, y1, x2 - x1, y2 - y1]}
        for name, difficult, (x1, y1, x2, y2) in objects
    ]
    return json.dumps({"image": {"height": size[0], "width": size[1]}, "annotation": items})


def _txt(_size, objects) -> str:
    return "".join(f"{NUMBERS[name]} {' '.join(map(str, c))}\n" for name, _, c in objects)


@pytest.fixture
def folder(tmp_path) -> Path:
    for i, (size, objects) in enumerate(zip(SIZES, OBJECTS)):
        pixels = np.random.default_rng(i).integers(0, 256, (*size, 3), np.uint8)
        cv2.imwrite(str(tmp_path / f"{i}.png"), pixels)
        for kind, text in (("xml", _xml), ("json", _json), ("txt", _txt)):
            (tmp_path / f"{i}.{kind}").write_text(text(size, objects))
    for kind in ("xml", "json", "txt"):
        (tmp_path / f"list_{kind}").write_text("".join(f"{i}.png {i}.{kind}\n" for i in range(3)))
    (tmp_path / "labels").write_text(LABEL_MAP)
    return tmp_path


def _args(folder: Path, kind: str = "xml", *more: str) -> list[str]:
    flags = ["--anno_type=detection", f"--label_type={kind}", f"--label_map_file={folder}/labels"]
    return [*flags, *more, f"{folder}/", f"{folder}/list_{kind}", f"{folder}/db"]


def _records(folder: Path, backend: str = "lmdb") -> list:
    return [
        caffe_pb2.AnnotatedDatum.FromString(value)
        for _, value in records_of(folder / "db", backend)
    ]


@pytest.mark.parametrize("backend", ["lmdb", "leveldb"])
@pytest.mark.parametrize("kind", ["xml", "json", "txt"])
def test_records_have_images_and_boxes(kind, backend, folder):
    assert run(convert_annoset, *_args(folder, kind, f"--backend={backend}", "--encoded")) == 0
    keys = [key for key, _ in records_of(folder / "db", backend)]
    assert keys == [b"%08d_%d.png" % (i, i) for i in range(3)]
    for i, record in enumerate(_records(folder, backend)):
        height, width = SIZES[i]
        datum = record.datum
        assert datum.encoded and datum.data == (folder / f"{i}.png").read_bytes()
        assert (datum.channels, datum.height, datum.width) == (3, height, width)
        assert record.type == caffe_pb2.AnnotatedDatum.BBOX and record.HasField("type")
        found = [
            (group.group_label, a.instance_id, a.bbox.difficult, a.bbox)
            for group in record.annotation_group
            for a in group.annotation
        ]
        names = list(dict.fromkeys(name for name, _, _ in OBJECTS[i]))
        expected = []
        for name in names:
            same = [(difficult, c) for n, difficult, c in OBJECTS[i] if n == name]
            expected += [(NUMBERS[name], k, *one) for k, one in enumerate(same)]
        assert len(found) == len(expected)
        for (label, instance, difficult, box), (number, k, hard, corners) in zip(found, expected):
            assert (label, instance, difficult) == (number, k, bool(hard) and kind != "txt")
            fractions = np.array(corners, np.float32) / np.array([width, height] * 2, np.float32)
            np.testing.assert_array_equal([box.xmin, box.ymin, box.xmax, box.ymax], fractions)


@pytest.mark.long
def test_a_layer_reads_them(folder):
    assert run(convert_annoset, *_args(folder)) == 0
    net = Net(
        text_format.Parse(
            f'layer {{ name: "d" type: "AnnotatedData" top: "data" top: "label" '
            f'data_param {{ source: "{folder}/db" batch_size: 3 backend: LMDB }} '
            f"transform_param {{ resize_param {{ height: 20 width: 20 }} }} }}",
            caffe_pb2.NetParameter(),
        )
    )
    net.forward()
    rows = net.blobs["label"].data[0, 0]
    assert rows[:, :3].tolist() == [[0, 5, 0], [0, 5, 1], [0, 1, 0], [1, 1, 0]]
    np.testing.assert_allclose(rows[0, 3:7], [2 / 40, 3 / 30, 20 / 40, 17 / 30], rtol=1e-6)
    net.close()


@pytest.mark.parametrize(
    ("flags", "sizes"),
    [
        (["--min_dim=48"], [(48, 64), (48, 64), (60, 50)]),
        (["--max_dim=40"], [(30, 40), (24, 32), (40, 33)]),
        (["--min_dim=48", "--max_dim=50"], [(38, 50), (38, 50), (50, 42)]),
        (["--resize_height=9", "--resize_width=8"], [(9, 8)] * 3),
        (["--resize_height=9", "--resize_width=8", "--min_dim=48"], [(48, 64), (48, 64), (60, 50)]),
    ],
)
@pytest.mark.parametrize("kind", ["raw", "jpg"])
def test_images_are_resized(flags, sizes, kind, folder):
    more = ["--encode_type=jpg"] if kind == "jpg" else []
    assert run(convert_annoset, *_args(folder, "xml", *flags, *more)) == 0
    for record, size in zip(_records(folder), sizes):
        datum = record.datum
        assert (datum.height, datum.width) == size and datum.encoded == (kind == "jpg")
        if datum.encoded:
            assert datum.data[:2] == b"\xff\xd8"
            assert cv2.imdecode(np.frombuffer(datum.data, np.uint8), -1).shape[:2] == size
        else:
            assert len(datum.data) == 3 * size[0] * size[1]
    assert _records(folder)[1].annotation_group[0].annotation[0].bbox.xmin == np.float32(11 / 32)


def test_labels_instead_of_boxes(folder):
    (folder / "list").write_text("0.png 7\n1.png -2\n")
    assert run(convert_annoset, "--gray", f"{folder}/", folder / "list", folder / "db") == 0
    records = _records(folder)
    assert [record.datum.label for record in records] == [7, -2]
    assert not any(r.HasField("type") or r.annotation_group for r in records)
    assert records[0].datum.channels == 1


def test_an_order_that_repeats(folder):
    orders = []
    for seed in (1, 1, 2):
        args = _args(folder, "xml", "--shuffle", f"--seed={seed}", "--redo")
        assert run(convert_annoset, *args) == 0
        orders.append([key.partition(b"_")[2] for key, _ in records_of(folder / "db")])
    assert orders[0] == orders[1] and sorted(orders[2]) == sorted(orders[0])


def test_only_redo_replaces_a_database(folder, capsys):
    assert run(convert_annoset, *_args(folder)) == 0
    fails(capsys, convert_annoset, *_args(folder), words=("exists already",))
    (folder / "0.xml").unlink()
    fails(capsys, convert_annoset, *_args(folder, "xml", "--redo"), words=("list_xml:1", "0.xml"))
    assert len(_records(folder)) == 3
    assert run(convert_annoset, *_args(folder, "txt", "--redo")) == 0
    (folder / "other").mkdir()
    (folder / "other" / "precious").write_text("x")
    args = [*_args(folder, "xml", "--redo")[:-1], folder / "other"]
    fails(capsys, convert_annoset, *args, words=("other", "is not an LMDB"))
    assert (folder / "other" / "precious").exists()


def _damage(folder: Path, what: str) -> None:
    files = {
        "no file": ("list_xml", "0.png 0.xml\n1.png gone.xml\n"),
        "one word": ("list_xml", "0.png 0.xml\n1.png\n"),
        "three words": ("list_xml", "0.png 0.xml\na b.png 1.xml\n"),
        "a label": ("1.xml", _xml((24, 32), [("cats", 0, (1, 2, 3, 4))])),
        "no XML": ("1.xml", "<annotation><object>"),
        "no name": ("1.xml", "<annotation><object><name>cat</name></object></annotation>"),
        "a corner": ("1.xml", _xml((24, 32), [("cat", 0, (1, 2, 3, "far"))])),
        "no JSON": ("1.json", "{"),
        "no list": ("1.json", "[]"),
        "three numbers": ("1.json", '{"annotation": [{"category_id": "cat", "bbox": [1, 2, 3]}]}'),
        "no class": ("1.json", '{"annotation": [{"bbox": [1, 2, 3, 4]}]}'),
        "a number": ("1.txt", "1 2 3 4 5\ncat 1 2 3 4\n"),
        "four": ("1.txt", "1 2 3 4\n"),
        "an image": ("1.png", "no image"),
        "twice": ("labels", LABEL_MAP + 'item { name: "cat" label: 6 }'),
        "same label": ("labels", LABEL_MAP + 'item { name: "bus" label: 5 }'),
        "a field": ("labels", 'item { nam: "cat" }'),
    }
    name, text = files[what]
    (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("no file", "xml", ("list_xml:2", "cannot read annotation", "gone.xml")),
        ("one word", "xml", ("list_xml:2", "expected the paths", "'1.png'")),
        ("three words", "xml", ("list_xml:2", "without spaces", "'a b.png 1.xml'")),
        ("a label", "xml", ("list_xml:2", "1.xml", "'cats'", "did you mean 'cat'?")),
        ("no XML", "xml", ("list_xml:2", "1.xml", "not XML", "line 1")),
        ("no name", "xml", ("list_xml:2", "object 0 needs a name and a bndbox")),
        ("a corner", "xml", ("list_xml:2", "four numbers", "far")),
        ("no JSON", "json", ("list_json:2", "1.json", "expected JSON")),
        ("no list", "json", ("list_json:2", "1.json", "expected JSON")),
        ("three numbers", "json", ("list_json:2", "annotation 0 needs four numbers")),
        ("no class", "json", ("list_json:2", "there is no 'category_id'")),
        ("a number", "txt", ("list_txt:2", "1.txt:2", "'cat' is not a label's number")),
        ("four", "txt", ("list_txt:2", "1.txt:1", "four numbers")),
        ("twice", "xml", ("labels", "'cat' occurs twice")),
        ("same label", "xml", ("labels", "'bus' and 'dog' have the same label 5")),
        ("a field", "xml", ("labels:1", "nam")),
    ],
)
def test_errors_name_the_lists_line(what, kind, words, folder, capsys):
    _damage(folder, what)
    fails(capsys, convert_annoset, *_args(folder, kind, "--check_label"), words=words)
    assert not (folder / "db").exists()


def test_an_image_that_cannot_be_read_is_left_out_or_named(folder, capsys):
    _damage(folder, "an image")
    fails(
        capsys,
        convert_annoset,
        *_args(folder, "xml", "--on_error=stop"),
        words=("list_xml:2", "1.png"),
    )
    assert run(convert_annoset, *_args(folder)) == 0
    assert [key for key, _ in records_of(folder / "db")] == [b"00000000_0.png", b"00000002_2.png"]


def test_bad_flags(folder, capsys):
    args = ["--anno_type=detection", f"{folder}/", folder / "list_xml", folder / "db"]
    fails(capsys, convert_annoset, *args, words=("--label_map_file",))
    fails(capsys, convert_annoset, "--min_dim=-1", *args, words=("--min_dim", "-1"))
    fails(capsys, convert_annoset, "--label_type=csv", *args, words=("--label_type", "csv"))


def test_sizes_of_images(folder, capsys):
    out = folder / "sizes"
    assert run(get_image_size, folder, folder / "list_xml", out) == 0
    assert out.read_text() == "0 30 40\n1 24 32\n2 60 50\n"
    (folder / "ids").write_text("0 100\n1 7\n2 3\n")
    flag = f"--name_id_file={folder}/ids"
    assert run(get_image_size, flag, folder, folder / "list_xml", out) == 0
    assert out.read_text() == "100 30 40\n7 24 32\n3 60 50\n"
    (folder / "ids").write_text("0 100\n2 3\n")
    fails(
        capsys, get_image_size, flag, folder, folder / "list_xml", out, words=("list_xml:2", "'1'")
    )
    _damage(folder, "an image")
    fails(capsys, get_image_size, folder, folder / "list_xml", out, words=("list_xml:2", "1.png"))
    assert out.read_text().startswith("100")


def test_label_maps(folder, capsys):
    names, out = folder / "names", folder / "map"
    names.write_text("cat\ndog\n")
    assert run(create_label_map, "--include_background", names, out) == 0
    assert read_label_map(str(out), True) == {"none_of_the_above": 0, "cat": 1, "dog": 2}
    names.write_text("cat:4:A cat\ndog:2:A dog\n")
    assert run(create_label_map, "--delimiter=:;", names, out) == 0
    found = text_format.Parse(out.read_text(), caffe_pb2.LabelMap())
    shown = [(item.name, item.label, item.display_name) for item in found.item]
    assert shown == [("cat", 4, "A cat"), ("dog", 2, "A dog")]
    names.write_text("cat 1\ndog\n")
    fails(capsys, create_label_map, names, out, words=("names:2", "'dog'"))
    names.write_text("cat one\n")
    fails(capsys, create_label_map, names, out, words=("names:1", "'one' is not a label"))
