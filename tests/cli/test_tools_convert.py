"""convert_mnist_data, convert_cifar_data and compute_image_mean against their Caffe namesakes."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from tool_runs import fails, records_of, run

from pycaffe_dist.cli import compute_image_mean, convert_cifar_data, convert_mnist_data
from pycaffe_dist.data.idx import write_idx
from pycaffe_dist.data.writers import create_database
from pycaffe_dist.errors import DataError
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.schema.binary import blob_to_array, read_blob

GOLDEN = Path(__file__).parents[1] / "golden" / "data"


@pytest.fixture
def mnist(tmp_path) -> tuple[Path, Path, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (1203, 4, 3), np.uint8)
    labels = rng.integers(0, 10, 1203, np.uint8)
    write_idx(str(tmp_path / "images.gz"), images)
    write_idx(str(tmp_path / "labels"), labels)
    return tmp_path / "images.gz", tmp_path / "labels", images, labels


@pytest.mark.parametrize(
    ("flags", "backend"),
    [
        ([], "lmdb"),
        (["--backend=leveldb"], "leveldb"),
        (["-backend", "lmdb"], "lmdb"),
        (["--backend", "leveldb"], "leveldb"),
    ],
)
def test_mnist(tmp_path, mnist, flags, backend):
    image_file, label_file, images, labels = mnist
    out = tmp_path / "db"
    assert run(convert_mnist_data, str(image_file), str(label_file), str(out), *flags) == 0
    records = records_of(out, backend)
    assert [key for key, _ in records] == [b"%08d" % i for i in range(1203)]
    for (_, value), image, label in zip(records, images, labels):
        # Caffe's bytes: the fields in the order of their numbers, and no others.
        head = struct.pack("6B", 0x08, 1, 0x10, 4, 0x18, 3)
        data = struct.pack("2B", 0x22, 12) + image.tobytes()
        assert value == head + data + struct.pack("2B", 0x28, label)
    assert sorted(os.listdir(tmp_path)) == ["db", "images.gz", "labels"]


def _cifar(folder: Path, count: int = 7) -> np.ndarray:
    records = np.random.default_rng(1).integers(0, 256, (6, count, 3073), np.uint8)
    records[:, :, 0] %= 10
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for name, part in zip(names, records):
        (folder / name).write_bytes(part.tobytes())
    return records


@pytest.mark.parametrize("backend", ["lmdb", "leveldb"])
def test_cifar(tmp_path, backend):
    records = _cifar(tmp_path)
    assert run(convert_cifar_data, str(tmp_path), str(tmp_path), backend) == 0
    train = records_of(tmp_path / f"cifar10_train_{backend}", backend)
    test = records_of(tmp_path / f"cifar10_test_{backend}", backend)
    for found, expected in ((train, records[:5].reshape(-1, 3073)), (test, records[5])):
        assert [key for key, _ in found] == [b"%05d" % i for i in range(len(expected))]
        for (_, value), record in zip(found, expected):
            datum = caffe_pb2.Datum.FromString(value)
            assert (datum.channels, datum.height, datum.width) == (3, 32, 32)
            assert datum.label == record[0] and datum.data == record[1:].tobytes()
            assert not datum.HasField("encoded")


def test_mean_is_caffes_byte_for_byte(tmp_path, caplog):
    out = tmp_path / "mean"
    for flags in (["imgs_lmdb"], ["imgs_leveldb", "--backend=leveldb"]):
        source = str(GOLDEN / flags[0])
        assert run(compute_image_mean, source, str(out), *flags[1:]) == 0
        assert out.read_bytes() == (GOLDEN / "mean.binaryproto").read_bytes()
    assert os.listdir(tmp_path) == ["mean"]


def _mean(path: Path, datums: list) -> np.ndarray:
    with create_database(str(path), "lmdb") as writer:
        for i, datum in enumerate(datums):
            writer.put(b"%d" % i, datum.SerializeToString())
    assert run(compute_image_mean, str(path), f"{path}.mean") == 0
    return blob_to_array(read_blob(f"{path}.mean"))


def test_mean_of_floats_and_of_encoded_images(tmp_path):
    floats = [caffe_pb2.Datum(channels=1, height=1, width=2, float_data=[i, -i]) for i in (1, 4)]
    assert _mean(tmp_path / "floats", floats).tolist() == [[[[2.5, -2.5]]]]
    image = caffe_pb2.Datum.FromString(records_of(GOLDEN / "encoded_lmdb")[0][1])
    expected = np.load(GOLDEN / "expected" / "lmdb_encoded.npz")["iter0/data"][:1]
    assert np.array_equal(_mean(tmp_path / "encoded", [image, image]), expected)


def test_sums_are_rounded_as_in_caffe(tmp_path):
    # 2**24 + 1 is no float: a sum in single precision, image by image, stays where it is.
    values = [2.0**24, 1.0, 1.0, 1.0]
    datums = [caffe_pb2.Datum(channels=1, height=1, width=1, float_data=[v]) for v in values]
    assert _mean(tmp_path / "db", datums).item() == 2.0**22


def test_existing_database_is_left_alone(tmp_path, mnist, capsys):
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "mine").write_text("x")
    args = (mnist[0], mnist[1], tmp_path / "db")
    fails(capsys, convert_mnist_data, *args, words=("exists already", str(tmp_path / "db")))
    assert os.listdir(tmp_path / "db") == ["mine"]
    _cifar(tmp_path)
    (tmp_path / "cifar10_test_lmdb").mkdir()
    fails(capsys, convert_cifar_data, tmp_path, tmp_path, words=("cifar10_test_lmdb",))
    assert not (tmp_path / "cifar10_train_lmdb").exists()


def test_bad_idx_files(tmp_path, mnist, capsys):
    images, labels = mnist[0], mnist[1]
    out = tmp_path / "db"
    whole = gzip.decompress(images.read_bytes())
    cut = tmp_path / "cut"
    cut.write_bytes(whole[:-1])
    damaged = tmp_path / "damaged"
    damaged.write_bytes(images.read_bytes()[:-20])
    write_idx(str(tmp_path / "few"), np.zeros(3, np.uint8))
    cases = [
        ((tmp_path / "none", labels), f"] {tmp_path}/none: no such file"),
        ((labels, labels), "not an idx file of images"),
        ((images, cut), "not an idx file of labels"),
        ((cut, labels), "1203 images, 14436 bytes"),
        ((damaged, labels), "damaged gzip"),
        ((images, tmp_path / "few"), "has 3 labels"),
    ]
    before = sorted(os.listdir(tmp_path))
    for (image_file, label_file), words in cases:
        fails(capsys, convert_mnist_data, image_file, label_file, out, words=(words,))
    fails(capsys, convert_mnist_data, images, labels, tmp_path / "no" / "db", words=("no folder",))
    assert sorted(os.listdir(tmp_path)) == before


def test_bad_cifar_files(tmp_path, capsys):
    _cifar(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(b"x" * 4000)
    fails(capsys, convert_cifar_data, tmp_path, tmp_path, words=("data_batch_3.bin", "4000"))
    (tmp_path / "data_batch_2.bin").unlink()
    fails(capsys, convert_cifar_data, tmp_path, tmp_path, words=("data_batch_2.bin",))
    fails(capsys, convert_cifar_data, tmp_path, tmp_path, "lmbd", words=("did you mean 'lmdb'",))
    assert not [name for name in os.listdir(tmp_path) if "lmdb" in name]


def test_mean_errors(tmp_path, capsys):
    fails(capsys, compute_image_mean, tmp_path / "none", words=("does not exist",))
    path = str(tmp_path / "db")
    with create_database(path, "lmdb") as writer:
        for i, width in enumerate([4, 4, 5]):
            datum = caffe_pb2.Datum(channels=1, height=1, width=width, data=b"x" * width)
            writer.put(b"%d" % i, datum.SerializeToString())
    fails(capsys, compute_image_mean, path, words=("record 2", "(1, 1, 5)", "(1, 1, 4)"))
    mean = tmp_path / "no" / "mean"
    fails(capsys, compute_image_mean, GOLDEN / "imgs_lmdb", mean, words=("there is no folder",))


@pytest.mark.parametrize("backend", ["lmdb", "leveldb"])
def test_interrupted_writing_leaves_nothing(tmp_path, backend):
    database = create_database(str(tmp_path / "db"), backend)
    with pytest.raises(KeyboardInterrupt), database as writer:
        for i in range(2500):
            writer.put(b"%08d" % i, b"x" * 100)
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_database_larger_than_the_first_map(tmp_path):
    with create_database(str(tmp_path / "db"), "lmdb") as writer:
        for i in range(150):
            writer.put(b"%08d" % i, bytes([i]) * (1 << 20))
    records = records_of(tmp_path / "db")
    assert [value[0] for _, value in records] == list(range(150))


def test_unwritable_folder(tmp_path, monkeypatch):
    def fail(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", fail)
    database = create_database(str(tmp_path / "db"), "lmdb")
    with pytest.raises(DataError, match=r"cannot write database .*Permission denied"), database:
        pass
