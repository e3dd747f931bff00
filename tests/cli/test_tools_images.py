"""convert_imageset, partition_data, extract_features, resize_and_crop_images and siamese pairs."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
from tool_runs import fails, records_of, run

from pycaffe_dist.cli import (
    convert_imageset,
    convert_mnist_siamese_data,
    extract_features,
    partition_data,
    resize_and_crop_images,
)
from pycaffe_dist.data.idx import write_idx
from pycaffe_dist.data.writers import create_database
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2, text

GOLDEN = Path(__file__).parents[1] / "golden" / "data"


@pytest.mark.parametrize(
    ("database", "names", "flags"),
    [
        ("imgs_lmdb", "list.txt", ["-resize_height=24", "-resize_width=20", "--check_size"]),
        ("gray_lmdb", "list.txt", ["--resize_height=24", "--resize_width=20", "--gray"]),
        ("encoded_lmdb", "list_same.txt", ["--encoded", "--decoders=1"]),
    ],
)
@pytest.mark.parametrize("backend", ["lmdb", "leveldb"])
def test_databases_equal_caffes(tmp_path, database, names, flags, backend):
    args = [f"{GOLDEN}/", GOLDEN / names, tmp_path / "db", f"--backend={backend}", *flags]
    assert run(convert_imageset, *args) == 0
    assert records_of(tmp_path / "db", backend) == records_of(GOLDEN / database)


def test_images_that_are_encoded_again(tmp_path):
    args = [f"{GOLDEN}/", GOLDEN / "list_same.txt", tmp_path / "db", "--encode_type=png"]
    assert run(convert_imageset, *args, "--resize_height=9", "--resize_width=8") == 0
    for (_, value), name in zip(records_of(tmp_path / "db"), ("img_00.jpg", "img_03.png")):
        datum = caffe_pb2.Datum.FromString(value)
        assert datum.encoded and datum.data.startswith(b"\x89PNG") and not datum.channels
        expected = cv2.resize(cv2.imread(str(GOLDEN / name)), (8, 9))
        found = cv2.imdecode(np.frombuffer(datum.data, np.uint8), cv2.IMREAD_COLOR)
        assert np.array_equal(found, expected)


def test_shuffled_images_keep_their_labels(tmp_path):
    args = [f"{GOLDEN}/", GOLDEN / "list.txt"]
    orders = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run(convert_imageset, *args, tmp_path / name, "--shuffle", f"--seed={seed}") == 0
        records = records_of(tmp_path / name)
        assert [key[:9] for key, _ in records] == [b"%08d_" % i for i in range(12)]
        labels = [caffe_pb2.Datum.FromString(value).label for _, value in records]
        numbers = [int(key[-6:-4]) for key, _ in records]
        assert labels == [number % 4 for number in numbers] and sorted(numbers) == list(range(12))
        orders.append(numbers)
    assert orders[0] == orders[1] != orders[2]


def test_bad_images_are_left_out_or_stop(tmp_path, capsys):
    (tmp_path / "bad.png").write_bytes(b"no image")
    cv2.imwrite(str(tmp_path / "good.png"), np.zeros((3, 4, 3), np.uint8))
    (tmp_path / "list").write_text("good.png 0\nbad.png 1\ngood.png 2\nnone.png 3\n")
    args = [f"{tmp_path}/", tmp_path / "list", tmp_path / "db"]
    fails(capsys, convert_imageset, *args, "--on_error=stop", words=("bad.png",))
    (tmp_path / "list").write_text("bad.png 1\nnone.png 3\n")
    fails(capsys, convert_imageset, *args, words=("none of the 2",))
    (tmp_path / "list").write_text("good.png 0\nbad.png 1\ngood.png 2\nnone.png 3\n")
    assert not (tmp_path / "db").exists()
    assert run(convert_imageset, *args) == 0
    assert "Left out 2 image(s)" in capsys.readouterr().err
    assert [key for key, _ in records_of(tmp_path / "db")] == [
        b"00000000_good.png",
        b"00000002_good.png",
    ]
    assert sorted(os.listdir(tmp_path)) == ["bad.png", "db", "good.png", "list"]


def test_bad_use_of_convert_imageset(tmp_path, capsys):
    root, names, out = f"{GOLDEN}/", GOLDEN / "list.txt", tmp_path / "db"
    fails(capsys, convert_imageset, root, tmp_path / "no", out, words=("cannot read", "no"))
    fails(capsys, convert_imageset, root, names, out, "--resize_width=3", words=("both",))
    fails(capsys, convert_imageset, root, names, out, "--seed=-1", words=("--seed", "not -1"))
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((3, 4, 3), np.uint8))
    cv2.imwrite(str(tmp_path / "b.png"), np.zeros((3, 5, 3), np.uint8))
    (tmp_path / "list").write_text("a.png 0\nb.png 0\n")
    args = [f"{tmp_path}/", tmp_path / "list", out]
    fails(capsys, convert_imageset, *args, "--check_size", words=("b.png", "45", "36"))
    fails(capsys, convert_imageset, *args, "--encode_type=xyz", words=("write", "xyz"))
    out.mkdir()
    fails(capsys, convert_imageset, *args, words=("exists already",))
    assert sorted(os.listdir(tmp_path)) == ["a.png", "b.png", "db", "list"]


@pytest.mark.parametrize("backend", ["lmdb", "leveldb"])
def test_partition_data(tmp_path, backend, capsys):
    database = tmp_path / "db"
    with create_database(str(database), backend) as writer:
        for i in range(7):
            writer.put(b"%03d" % i, b"v" * i)
    assert run(partition_data, database, 3, f"--backend={backend}") == 0
    whole = records_of(database, backend)
    parts = [records_of(tmp_path / f"db_{rank}", backend) for rank in range(3)]
    assert parts == [whole[rank::3] for rank in range(3)]
    assert run(partition_data, database, 2, tmp_path / "x", f"--backend={backend}") == 0
    assert (tmp_path / "x_1").exists()
    (tmp_path / "y_1").mkdir()
    args = [database, 2, tmp_path / "y", f"--backend={backend}"]
    fails(capsys, partition_data, *args, words=("y_1", "exists"))
    assert not (tmp_path / "y_0").exists()
    args = [database, 8, f"--backend={backend}"]
    fails(capsys, partition_data, *args, words=("7 records", "8 parts"))


NET = """
layer { name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "%s" backend: LMDB batch_size: 5 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
"""


@pytest.fixture
def trained(tmp_path):
    (tmp_path / "net.prototxt").write_text(NET % (GOLDEN / "gray_lmdb"))
    net = Net(text.read_net(tmp_path / "net.prototxt"), seed=1)
    net.save_weights(str(tmp_path / "net.caffemodel"))
    values = {"data": [], "ip": []}
    for _ in range(3):
        net.forward()
        for name, rows in values.items():
            rows.append(net.blobs[name].data.copy())
    net.close()
    return tmp_path, {name: np.concatenate(rows) for name, rows in values.items()}


@pytest.mark.parametrize("kind", ["lmdb", "leveldb", "hdf5"])
def test_extract_features(trained, kind):
    folder, expected = trained
    model = [folder / "net.caffemodel", folder / "net.prototxt"]
    targets = f"{folder}/a,{folder}/b"
    assert run(extract_features, *model, "data,ip", targets, 3, kind, "CPU") == 0
    for target, name in (("a", "data"), ("b", "ip")):
        if kind == "hdf5":
            with h5py.File(folder / target) as file:
                assert np.array_equal(file[name][...], expected[name])
            continue
        records = records_of(folder / target, kind)
        assert [key for key, _ in records] == [b"%010d" % i for i in range(15)]
        for (_, value), row in zip(records, expected[name]):
            datum = caffe_pb2.Datum.FromString(value)
            shape = (*row.shape, 1, 1)[:3]
            assert (datum.channels, datum.height, datum.width) == shape
            assert np.array_equal(np.array(datum.float_data, np.float32), row.reshape(-1))


def test_bad_use_of_extract_features(trained, capsys):
    folder, _ = trained
    before = sorted(os.listdir(folder))
    model = [folder / "net.caffemodel", folder / "net.prototxt"]
    for args, words in [
        (("data,ip", f"{folder}/a", 3, "lmdb"), ("as many targets",)),
        (("ipp", f"{folder}/a", 3, "lmdb"), ("no blob 'ipp'", "did you mean 'ip'")),
        (("ip", f"{folder}/a", 3, "lmbd"), ("lmbd",)),
        (("ip", f"{folder}/a", 0, "lmdb"), ("1 batch",)),
        (("ip", f"{folder}/no/a", 1, "hdf5"), ("no",)),
        (("ip,data", f"{folder}/a,{folder}/./a", 1, "hdf5"), ("a target of its own",)),
    ]:
        fails(capsys, extract_features, *model, *args, words=words)
        assert sorted(os.listdir(folder)) == before


def test_resize_and_crop_images(tmp_path, capsys):
    for name, shape in (("tall.png", (40, 20, 3)), ("deep/wide.jpg", (20, 50, 3))):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 256, shape, np.uint8))
    (tmp_path / "list").write_text("tall.png\ndeep/wide.jpg\n")
    folders = [f"--input_folder={tmp_path}/in", f"--output_folder={tmp_path}/out"]
    assert run(resize_and_crop_images, tmp_path / "list", *folders, "-output_side_length=10") == 0
    tall = cv2.imread(str(tmp_path / "in" / "tall.png"))
    expected = cv2.resize(tall, (10, 20))[5:15]
    assert np.array_equal(cv2.imread(str(tmp_path / "out" / "tall.png")), expected)
    assert cv2.imread(str(tmp_path / "out" / "deep" / "wide.jpg")).shape == (10, 10, 3)
    (tmp_path / "list").write_text("none.png\ntall.png\n")
    assert run(resize_and_crop_images, tmp_path / "list", *folders) == 1
    assert "Converted 1 images, 1 failed" in capsys.readouterr().err


def test_siamese_pairs(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 4, 3), np.uint8)
    labels = rng.integers(0, 3, 60, np.uint8)
    write_idx(str(tmp_path / "images"), images)
    write_idx(str(tmp_path / "labels"), labels)
    args = [tmp_path / "images", tmp_path / "labels"]
    assert run(convert_mnist_siamese_data, *args, tmp_path / "db") == 0
    known = {image.tobytes(): label for image, label in zip(images, labels)}
    records = records_of(tmp_path / "db", "leveldb")
    assert len(records) == 60
    for _, value in records:
        datum = caffe_pb2.Datum.FromString(value)
        assert (datum.channels, datum.height, datum.width) == (2, 4, 3)
        assert datum.label == (known[datum.data[:12]] == known[datum.data[12:]])
