"""The scripts that make data for the models without a download, and nets that train on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import h5py
import lmdb
import numpy as np
import pytest

import pycaffe_dist as caffe
from pycaffe_dist.data.canvases import write_canvases
from pycaffe_dist.data.examples import SIDE, STREAMS, write_characters, write_shapes
from pycaffe_dist.data.idx import write_idx
from pycaffe_dist.errors import DataError
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2, text

REPOSITORY = Path(__file__).parents[2]
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
SCRIPTS = sorted(
    str(path.relative_to(REPOSITORY))
    for folder in ("data", "scripts")
    for path in (REPOSITORY / folder).rglob("*")
    if path.suffix in (".sh", ".slurm") and os.access(path, os.X_OK)
)


@pytest.fixture
def copy(tmp_path) -> Path:
    """Return a repository with only the folders that scripts need, and without any data."""
    root = tmp_path / "repository"
    ignored = shutil.ignore_patterns(
        "__pycache__", "*_lmdb", "*_leveldb", "*.h5", "*-ubyte", "*.bin", "*.png", "*.xml"
    )
    for folder in ("data", "tools", "scripts", "models"):
        shutil.copytree(REPOSITORY / folder, root / folder, ignore=ignored)
    return root


def _run(root: Path, *args: str, status: int = 0) -> str:
    done = subprocess.run(
        [str(root / args[0]), *args[1:]],
        env={**os.environ, "PATH": PATH, "PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_tells_its_usage(copy, script):
    assert "usage: " in _run(copy, script, "--help")


def _train(root: Path, solver: str, tmp_path: Path, iterations: int) -> str:
    param = text.read_solver(root / solver)
    param.max_iter, param.random_seed, param.snapshot_after_train = iterations, 1, False
    param.display, param.test_interval = 1, iterations
    param.test_iter[:] = [2] * len(param.test_iter)
    (tmp_path / "solver.prototxt").write_text(text.to_text(param))
    done = subprocess.run(
        [sys.executable, "-m", "pycaffe_dist", "train", f"--solver={tmp_path}/solver.prototxt"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
def test_points_can_be_learned(copy, tmp_path):
    _run(copy, "data/hdf5_classification/create_hdf5_classification.sh")
    with h5py.File(copy / "data/hdf5_classification/train.h5") as file:
        assert file["data"].shape == (7500, 4) and file["label"].shape == (7500,)
        assert 0.2 < file["label"][...].mean() < 0.8
    log = _train(copy, "models/hdf5_classification/solver.prototxt", tmp_path, 300)
    scores = [line.split(" = ")[1] for line in log.splitlines() if "accuracy = " in line]
    assert float(scores[-1]) > 0.6


@pytest.mark.long
def test_characters_can_be_learned(copy, tmp_path):
    (tmp_path / "text").write_text("The quick brown fox jumps over the lazy dog. " * 400)
    _run(copy, "data/characters/create_characters.sh", str(tmp_path / "text"))
    log = _train(copy, "models/char_lstm/char_lstm_solver.prototxt", tmp_path, 4)
    losses = [float(line.rpartition("loss = ")[2]) for line in log.splitlines()
              if "Iteration" in line and "loss = " in line]  # fmt: skip
    assert 5.4 < losses[0] < 5.7  # ln 256
    assert losses[-1] < losses[0]


@pytest.mark.long
def test_shapes_can_be_segmented(copy, tmp_path):
    _write_shapes(copy, {"train": 300, "test": 50})
    log = _train(copy, "models/segnet_shapes/solver.prototxt", tmp_path, 150)
    values = [float(line.split(" = ")[1]) for line in log.splitlines() if "accuracy = " in line]
    pixels, recall, overlap = values[-3:]
    assert pixels > 0.8 and recall > 0.4 and overlap > 0.3  # all background: 0.7, 0.25, 0.18


def _write_shapes(root, counts):
    write_shapes(str(root / "data/shapes"), counts)
    for part in counts:
        (root / f"data/shapes/{part}.txt").write_text(f"data/shapes/{part}.h5\n")


def test_masks_are_drawn(copy, tmp_path):
    _write_shapes(copy, {"test": 8})
    deploy, weights = copy / "models/segnet_shapes/deploy.prototxt", tmp_path / "w.caffemodel"
    caffe.Net(str(deploy), caffe.TEST).save(str(weights))
    script, picture = REPOSITORY / "docs/examples/draw_masks.py", tmp_path / "masks.png"
    command = [sys.executable, script, deploy, weights, copy / "data/shapes/test.h5", picture]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    found = cv2.imread(str(picture))
    assert found.shape == (3 * SIDE, 8 * SIDE, 3)
    assert len(np.unique(found[SIDE : 2 * SIDE].reshape(-1, 3), axis=0)) == 4


def test_drawn_shapes_are_always_the_same(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_shapes(str(tmp_path / folder), {"train": 4})
    contents = []
    for folder in ("a", "b"):
        with h5py.File(tmp_path / folder / "train.h5") as file:
            contents.append([file[name][...] for name in ("data", "label")])
    for one, other in zip(*contents):
        np.testing.assert_array_equal(one, other)
    images, labels = contents[0]
    assert images.shape == (4, 3, SIDE, SIDE) and labels.shape == (4, 1, SIDE, SIDE)
    assert set(np.unique(labels)) <= {0, 1, 2, 3} and (labels > 0).any()


def test_the_target_of_a_character_is_the_next_one(tmp_path):
    content = bytes(range(256)) * 4
    write_characters(content, str(tmp_path))
    with h5py.File(tmp_path / "train.h5") as file:
        data, cont, target = (file[name][...] for name in ("data", "cont", "target"))
    steps = (int(len(content) * 0.9) - 1) // STREAMS
    assert data.shape == cont.shape == target.shape == (steps, STREAMS)
    assert not cont[0].any() and cont[1:].all()
    assert bytes(data.T.astype(np.uint8).reshape(-1)) == content[: steps * STREAMS]
    assert bytes(target.T.astype(np.uint8).reshape(-1)) == content[1 : steps * STREAMS + 1]
    with pytest.raises(DataError, match="needs more than 200 bytes"):
        write_characters(content[:150], str(tmp_path))


def test_siamese_pairs_are_made(copy):
    rng = np.random.default_rng(0)
    for name in ("train", "t10k"):
        folder = copy / "data" / "mnist"
        write_idx(
            f"{folder}/{name}-images-idx3-ubyte", rng.integers(0, 256, (30, 28, 28), np.uint8)
        )
        write_idx(f"{folder}/{name}-labels-idx1-ubyte", rng.integers(0, 10, 30, np.uint8))
    assert "created" in _run(copy, "data/mnist/create_mnist_siamese.sh")
    assert (copy / "data/mnist/mnist_siamese_test_leveldb/CURRENT").exists()
    assert "is there already" in _run(copy, "data/mnist/create_mnist_siamese.sh")


@pytest.mark.long
def test_digits_are_placed_on_canvases(copy, tmp_path):
    script, folder = "data/digit_canvases/create_digit_canvases.sh", copy / "data/digit_canvases"
    assert "get_mnist.sh first" in _run(copy, script, status=1)
    digits = np.zeros((20, 28, 28), np.uint8)
    digits[:, 4:24, 9:19] = 255
    for name in ("train", "t10k"):
        write_idx(f"{copy}/data/mnist/{name}-images-idx3-ubyte", digits)
        write_idx(f"{copy}/data/mnist/{name}-labels-idx1-ubyte", np.arange(20, dtype="u1") % 10)
    assert "created" in _run(copy, script, "6", "3")
    assert (folder / "test_name_size.txt").read_text() == "".join(
        f"00000{i} 96 96\n" for i in range(3)
    )
    param = caffe_pb2.NetParameter()
    layer = param.layer.add(name="d", type="AnnotatedData", top=["data", "label"])
    layer.data_param.source, layer.data_param.batch_size = f"{folder}/train_lmdb", 6
    layer.data_param.backend = caffe_pb2.DataParameter.LMDB
    net = Net(param)
    net.forward()
    images, rows = net.blobs["data"].data, net.blobs["label"].data[0, 0]
    assert set(rows[:, 0]) == set(range(6)) and set(rows[:, 1]) <= set(range(1, 11))
    for image, _, _, *corners in rows[:, :7]:
        x1, y1, x2, y2 = np.rint(np.array(corners) * 96).astype(int)
        assert 20 <= y2 - y1 <= 48 and x2 - x1 == round((y2 - y1) / 2)
        assert images[int(image), :, y1:y2, x1:x2].min() >= 100
    net.close()
    images_before = [path.read_bytes() for path in sorted((folder / "train").glob("*.png"))]
    write_canvases(f"{copy}/data/mnist", str(tmp_path), {"train": 6})
    assert images_before == [
        path.read_bytes() for path in sorted((tmp_path / "train").glob("*.png"))
    ]
    with pytest.raises(DataError, match="cannot write canvases"):
        write_canvases(f"{copy}/data/mnist", str(folder / "train.txt"), {"train": 1})


def test_imagenet_is_converted(copy, tmp_path):
    script = "data/ilsvrc12/create_imagenet.sh"
    images = tmp_path / "images"
    (images / "n01").mkdir(parents=True)
    assert "get_ilsvrc_aux.sh first" in _run(copy, script, str(images), str(images), status=1)
    archive = tmp_path / "mirror" / "caffe_ilsvrc12"
    archive.mkdir(parents=True)
    for part in ("train", "val"):
        names = [f"n01/{part}{i}.JPEG" for i in range(3)]
        for i, name in enumerate(names):
            cv2.imwrite(str(images / name), np.full((20 + i, 30, 3), 40 * i, np.uint8))
        lines = "".join(f"{name} {i}\n" for i, name in enumerate(names))
        (archive / f"{part}.txt").write_text(lines)
    subprocess.run(
        ["tar", "-czf", f"{archive}.tar.gz", "-C", str(archive), "train.txt", "val.txt"], check=True
    )
    os.environ["ILSVRC_MIRROR"] = str(tmp_path / "mirror")
    try:
        _run(copy, "data/ilsvrc12/get_ilsvrc_aux.sh")
    finally:
        del os.environ["ILSVRC_MIRROR"]
    _run(copy, script, "--resize", str(images), str(images))
    folder = copy / "data" / "ilsvrc12"
    with lmdb.open(str(folder / "ilsvrc12_val_lmdb"), readonly=True, lock=False) as env:
        datums = [caffe_pb2.Datum.FromString(value) for _, value in env.begin().cursor()]
    assert [(d.channels, d.height, d.width) for d in datums] == [(3, 256, 256)] * 3
    assert sorted(d.label for d in datums) == [0, 1, 2]
    assert "created" in _run(copy, "data/ilsvrc12/make_imagenet_mean.sh")
    assert (folder / "imagenet_mean.binaryproto").exists()


def test_alias_for_old_scripts(tmp_path):
    guide = (REPOSITORY / "docs" / "data_and_tools.md").read_text()
    (line,) = [line.strip() for line in guide.splitlines() if "    pcaffe install-names" in line]
    command = f"{line} && ./build/tools/caffe train --help"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env={**os.environ, "PATH": PATH},
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0 and "--solver" in done.stdout


@pytest.mark.parametrize(("machines", "ranks"), [("none", "2"), ("hostfile.example", "all")])
def test_quick_training_does_not_guess_ranks_or_hosts(machines, ranks):
    command = [REPOSITORY / "scripts/mpi_train_quick.sh", "-machinefile", machines, "-n", ranks]
    environment = {**os.environ, "PATH": PATH}
    done = subprocess.run(
        command, cwd=REPOSITORY / "scripts", env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert machines in done.stderr or ranks in done.stderr
