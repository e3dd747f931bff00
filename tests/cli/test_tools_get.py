"""The get_ and create_ scripts of data/, in a copy of the repository's data/ and tools/."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pycaffe_dist.data.idx import read_images, read_labels, write_idx

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = [
    "mnist/get_mnist.sh",
    "mnist/create_mnist.sh",
    "cifar10/get_cifar10.sh",
    "cifar10/create_cifar10.sh",
]


@pytest.fixture
def data(tmp_path) -> Path:
    """Return the data folder of a copy that has only tracked files."""
    for script in [*SCRIPTS, "common.sh"]:
        target = tmp_path / "repository" / "data" / script
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / "data" / script, target)
    shutil.copytree(REPOSITORY / "tools", tmp_path / "repository" / "tools")
    return tmp_path / "repository" / "data"


def _run(script: Path, *args: str, **environment: str) -> subprocess.CompletedProcess:
    # PATH without curl and wget: no test may depend on a network.
    path = script.parents[2] / "bin"
    path.mkdir(exist_ok=True)
    for tool in ("bash", "basename", "cat", "cmp", "cp", "dirname", "gunzip", "gzip", "mktemp"):
        _link(path, tool)
    for tool in ("mv", "rm", "sed", "sha256sum", "shasum", "tar", "env"):
        _link(path, tool)
    environment = {
        "PATH": str(path),
        "PYTHON": sys.executable,
        "PYTHONPATH": str(REPOSITORY),
        **environment,
    }
    return subprocess.run(
        [str(script), *args], env=environment, cwd="/", capture_output=True, text=True, timeout=120
    )


def _link(folder: Path, tool: str) -> None:
    found = shutil.which(tool)
    if found and not (folder / tool).exists():
        (folder / tool).symlink_to(found)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_and_wrong_argument(data, script):
    shown = _run(data / script, "--help")
    assert shown.returncode == 0 and f"usage: data/{script}" in shown.stdout
    wrong = _run(data / script, "--unknown")
    assert wrong.returncode == 1 and f"usage: data/{script}" in wrong.stderr


@pytest.mark.parametrize(
    ("script", "variable"),
    [("mnist/get_mnist.sh", "MNIST_MIRROR"), ("cifar10/get_cifar10.sh", "CIFAR10_MIRROR")],
)
@pytest.mark.parametrize("mirror", ["/nowhere", "file:///nowhere", "http://127.0.0.1:9/"])
def test_mirror_without_the_files(data, script, variable, mirror):
    done = _run(data / script, **{variable: mirror})
    assert done.returncode == 1 and mirror in done.stderr
    assert not [name for name in os.listdir((data / script).parent) if not name.endswith(".sh")]


def test_damaged_files_are_refused_and_not_kept(data, tmp_path):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"not MNIST"))
    done = _run(data / "mnist" / "get_mnist.sh", MNIST_MIRROR=str(tmp_path))
    assert done.returncode == 1 and "damaged or different train-images" in done.stderr
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"not CIFAR-10")
    done = _run(data / "cifar10" / "get_cifar10.sh", CIFAR10_MIRROR=f"file://{tmp_path}")
    assert done.returncode == 1 and "damaged or different" in done.stderr
    for folder in ("mnist", "cifar10"):
        assert not [name for name in os.listdir(data / folder) if not name.endswith(".sh")]


def test_create_before_get(data):
    for script, get in (
        ("mnist/create_mnist.sh", "get_mnist"),
        ("cifar10/create_cifar10.sh", "get"),
    ):
        done = _run(data / script)
        assert done.returncode == 1 and get in done.stderr


def test_create_mnist_is_repeatable_and_follows_its_files(data):
    folder = data / "mnist"
    for part in ("train", "t10k"):
        write_idx(str(folder / f"{part}-images-idx3-ubyte"), np.zeros((3, 2, 2), np.uint8))
        write_idx(str(folder / f"{part}-labels-idx1-ubyte"), np.zeros(3, np.uint8))
    script = folder / "create_mnist.sh"
    first = _run(script)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("created") == 2
    assert _run(script).stdout.count("is there already") == 2
    labels = folder / "t10k-labels-idx1-ubyte"
    later = (folder / "mnist_test_lmdb").stat().st_mtime + 1
    os.utime(labels, (later, later))
    again = _run(script)
    assert "mnist_train_lmdb: is there already" in again.stdout
    assert "mnist_test_lmdb: created" in again.stdout


def test_create_cifar10_with_mean(data):
    folder = data / "cifar10"
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (folder / f"{name}.bin").write_bytes(bytes(3073 * 2))
    script = folder / "create_cifar10.sh"
    done = _run(script, "leveldb")
    assert done.returncode == 0, done.stderr
    assert {"cifar10_train_leveldb", "cifar10_test_leveldb", "mean.binaryproto"} <= set(
        os.listdir(folder)
    )
    assert _run(script, "leveldb").stdout.count("already") == 2


@pytest.mark.long
def test_digits_take_mnists_place(data):
    pytest.importorskip("sklearn")
    script = data / "mnist" / "get_mnist.sh"
    done = _run(script, PYTHONPATH=os.pathsep.join([str(REPOSITORY), *sys.path]))
    assert done.returncode == 0 and "NOT MNIST" in done.stderr
    images = read_images(str(data / "mnist" / "train-images-idx3-ubyte"))
    labels = read_labels(str(data / "mnist" / "train-labels-idx1-ubyte"))
    assert images.shape == (1500, 28, 28) and labels.shape == (1500,)
    assert images.max() == 255 and set(labels) == set(range(10))
    assert len(read_images(str(data / "mnist" / "t10k-images-idx3-ubyte"))) == 297
