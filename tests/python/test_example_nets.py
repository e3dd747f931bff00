"""The examples of docs/examples, made small: they train and show what their pages say."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from running import run

import pycaffe_dist as caffe
from pycaffe_dist.data.cifar_parts import FEW, main
from pycaffe_dist.data.convert import CIFAR_TEST_FILES, CIFAR_TRAIN_FILES
from pycaffe_dist.data.digits import write_digits

ROOT = Path(__file__).resolve().parents[2]
BATCH, TEST_BATCHES = 16, 12
FOLDERS = (
    *("models/mnist_center_loss", "models/mobilenet_cifar10", "models/ssd_digits"),
    *("data/mnist", "data/digit_canvases", "tools"),
)
MADE = "*_lmdb", "*.caffemodel", "*-ubyte", "__pycache__", "*.png", "*.xml"


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Return the current folder, which has the models and the scripts of the data."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns(*MADE))
    shutil.copy(ROOT / "data/common.sh", tmp_path / "data")
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load_script(name):
    """Return a script of the repository as a module."""
    path = ROOT / name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_fields(text, changes):
    """Return a solver's text with other values of fields that it has."""
    for field, value in changes.items():
        text, found = re.subn(rf"^{field}: .*$", f"{field}: {value}", text, flags=re.MULTILINE)
        assert found == 1
    return text


def train(solver_file, iterations, weights=None) -> tuple[str, float]:
    """Train with a short form of a solver; return the file of weights and the test accuracy."""
    solver_file = Path(solver_file)
    changes = {"max_iter": iterations, "test_iter": TEST_BATCHES}
    text = with_fields(solver_file.read_text(), changes)
    text = re.sub(r"^test_interval: .*$", "test_interval: 1000", text, flags=re.MULTILINE)
    solver_file.write_text(text)
    solver = caffe.SGDSolver(str(solver_file))
    if weights:
        solver.net.copy_from(weights)
    solver.step(iterations)
    solver.snapshot()
    test = solver.test_nets[0]
    test.share_with(solver.net)
    accuracies = [float(test.forward()["accuracy"]) for _ in range(TEST_BATCHES)]
    prefix = re.search('snapshot_prefix: "(.*)"', text)[1]
    return f"{prefix}_iter_{iterations}.caffemodel", float(np.mean(accuracies))


def shrink_batches(folder, base_lr):
    """Make batches of a few images, and the learning rate one for them."""
    for path in folder.glob("*train*.prototxt"):
        path.write_text(re.sub(r"batch_size: \d+", f"batch_size: {BATCH}", path.read_text()))
    for path in folder.glob("*solver.prototxt"):
        path.write_text(re.sub(r"base_lr: \S+", f"base_lr: {base_lr}", path.read_text()))


@pytest.mark.long
def test_center_loss_draws_the_features_of_a_class_together(here):
    pytest.importorskip("matplotlib")
    write_digits("data/mnist")
    subprocess.run(["data/mnist/create_mnist.sh"], check=True)
    model = here / "models/mnist_center_loss"
    shrink_batches(model, 0.004)
    runs = [f"{k}={train(model / f'{k}_solver.prototxt', 450)[0]}" for k in ("softmax", "center")]
    features = load_script("scripts/center_loss_features.py")
    net = str(model / "train_test.prototxt")
    results = features.main(net, "features.png", *runs, batches=TEST_BATCHES)
    assert Path("features.png").stat().st_size
    assert results["center"][1] < 0.9 * results["softmax"][1]
    assert results["center"][0] > 0.6


def test_the_ratio_of_distances():
    features = load_script("scripts/center_loss_features.py")
    # Two classes whose means are 6 apart; their members are 1 and 2 away.
    points = np.array([[0, 1], [0, -1], [6, 2], [6, -2]], float)
    assert features.ratio(points, np.array([4, 4, 7, 7])) == pytest.approx(1.5 / 6)


@pytest.mark.long
def test_a_detector_finds_digits_and_its_boxes_are_drawn(here):
    write_digits("data/mnist")
    subprocess.run(["data/digit_canvases/create_digit_canvases.sh", "300", "100"], check=True)
    model, data = here / "models/ssd_digits", here / "data/digit_canvases"
    shrink_batches(model, 0.02)
    solver = model / "solver.prototxt"
    changes = dict.fromkeys(("max_iter", "snapshot", "test_interval"), 120)
    changes |= {"test_iter": 6, "test_initialization": "true"}
    solver.write_text(with_fields(solver.read_text(), changes))
    log = run(["pcaffe", "train", f"--solver={solver}"], here)
    untrained, trained = map(float, re.findall(r"detection_eval = (\S+)", log))
    assert untrained < 0.1 and trained > 0.25
    weights = str(model / "ssd_digits_iter_120.caffemodel")
    paths = [str(data / f"test/00000{number}.png") for number in range(3)]
    boxes = load_script("docs/examples/draw_boxes.py")
    deploy = str(model / "deploy.prototxt")
    boxes.main(deploy, weights, str(data / "labelmap.prototxt"), "boxes.png", *paths)
    assert cv2.imread("boxes.png").shape == (192, 3 * 192, 3)
    net = caffe.Net(deploy, caffe.TEST, weights=weights)
    boxes.detect(net, [caffe.io.load_image(path) for path in paths])
    pixels = np.stack([cv2.imread(path) for path in paths]).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(net.blobs["data"].data, (pixels - 60.0) / 100, atol=1e-6)


def write_gratings(folder, images):
    """Write files like CIFAR-10's: a class is a width of stripes."""
    rng = np.random.default_rng(0)
    columns = np.mgrid[:32, :32][1] / 32
    for name in (*CIFAR_TRAIN_FILES, *CIFAR_TEST_FILES):
        labels = rng.permutation(np.arange(images) % 10)
        waves = (1 + labels)[:, None, None] * columns + rng.random((images, 1, 1))
        pixels = 128 + 60 * np.sin(2 * np.pi * waves) + rng.normal(0, 30, waves.shape)
        pixels = np.repeat(pixels.clip(0, 255).reshape(images, 1, -1), 3, axis=1)
        records = np.hstack([labels[:, None], pixels.reshape(images, -1)]).astype(np.uint8)
        (folder / name).write_bytes(records.tobytes())


@pytest.mark.long
def test_fine_tuning_is_better_than_training_from_random_weights(here):
    folder = here / "data/cifar10"
    folder.mkdir()
    write_gratings(folder, 300)
    assert main(["", str(folder)]) == 0
    model = here / "models/mobilenet_cifar10"
    shrink_batches(model, 0.02)
    weights, seven = train(model / "seven_solver.prototxt", 120)
    solver = model / "three_solver.prototxt"
    _, scratch = train(solver, 30)
    _, tuned = train(solver, 30, weights)
    assert seven > 0.5
    assert tuned > 0.6 and tuned > scratch


def test_parts_of_cifar(tmp_path):
    import lmdb

    from pycaffe_dist.schema import caffe_pb2

    write_gratings(tmp_path, 1000)
    assert main(["", str(tmp_path)]) == 0
    counts = {}
    for task, part in (
        ("seven", "train"),
        ("seven", "test"),
        ("three", "train"),
        ("three", "test"),
    ):
        path = str(tmp_path / f"cifar10_{task}_{part}_lmdb")
        with lmdb.open(path, readonly=True, lock=False) as env:
            datums = [caffe_pb2.Datum.FromString(value) for _, value in env.begin().cursor()]
        counts[task, part] = np.bincount([datum.label for datum in datums]).tolist()
    assert counts["seven", "train"] == [500] * 7 and counts["three", "train"] == [FEW] * 3
    assert counts["seven", "test"] == [100] * 7 and counts["three", "test"] == [100] * 3
    (tmp_path / "data_batch_3.bin").unlink()
    assert "data_batch_3.bin" in main(["", str(tmp_path)])
    assert "usage: " in main([""])
