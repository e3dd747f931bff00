"""Errors about missing files name the script that makes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pycaffe_dist.data.sources import open_source
from pycaffe_dist.data_scripts import how_to_make
from pycaffe_dist.errors import DataError
from pycaffe_dist.schema.binary import read_blob

ROOT = Path(__file__).parents[1]


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A copy of the scripts, without data."""
    for script in ROOT.glob("data/*/*.sh"):
        copy = tmp_path / script.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(script.read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


CIFAR = "data/cifar10/get_cifar10.sh and data/cifar10/create_cifar10.sh"


@pytest.mark.parametrize(
    "path, hint",
    [
        ("data/cifar10/mean.binaryproto", f"; {CIFAR} make it"),
        ("data/cifar10/cifar10_test_leveldb", f"; {CIFAR} leveldb make it"),
        ("examples/cifar10/mean.binaryproto", f"; {CIFAR} make data/cifar10/mean.binaryproto"),
        ("data/shapes/train.txt", "; data/shapes/create_shapes.sh makes it"),
        ("data/ilsvrc12/imagenet_mean.binaryproto", "; data/ilsvrc12/get_ilsvrc_aux.sh makes it"),
        ("mean.binaryproto", ""),
        ("data/cifar10/cifar10", ""),
    ],
)
def test_the_scripts_are_named(repository, path, hint):
    assert how_to_make(path, repository) == hint


def test_what_was_made_elsewhere_is_pointed_to(repository, monkeypatch):
    made = repository / "data" / "mnist" / "mnist_train_lmdb"
    made.mkdir()
    there = "; there is one, data/mnist/mnist_train_lmdb: change the path"
    assert how_to_make("examples/mnist/mnist_train_lmdb", repository) == there
    monkeypatch.chdir(ROOT)
    there = f"; there is one, {made}: start in {repository}"
    assert how_to_make("data/mnist/mnist_train_lmdb", repository) == there


def files_of_models() -> list[str]:
    """Return the files that the nets in models/ read, but those that nobody may pass on."""
    texts = [path.read_text() for path in ROOT.glob("models/*/*.prototxt")]
    named = {name for t in texts for name in re.findall(r'(?:source|mean_file): "([^"]+)"', t)}
    return sorted(name for name in named if not name.startswith("data/flickr_style/"))


@pytest.mark.parametrize("path", files_of_models())
def test_every_file_that_a_net_in_models_reads_has_a_script(repository, path):
    assert re.search(r"; data/\S+\.sh .*makes? it$|\.sh makes? it$", how_to_make(path, repository))


def test_errors_have_the_hint(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    wanted = "x/digit_canvases/train_lmdb"
    script = ROOT / "data/digit_canvases/create_digit_canvases.sh"
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}'); {script} makes {ROOT}/data/")):
        open_source(wanted, "lmdb")
    monkeypatch.setattr("pycaffe_dist.schema.reading.how_to_make", lambda path: f"; make {path}")
    with pytest.raises(DataError, match=r"a\.binaryproto: no such file; make a\.binaryproto"):
        read_blob("a.binaryproto")


def test_scripts_of_the_current_folder_are_found(repository, monkeypatch, tmp_path):
    monkeypatch.setattr("pycaffe_dist.data_scripts._ROOT", tmp_path / "none")
    assert how_to_make("data/cifar10/mean.binaryproto") == f"; {CIFAR} make it"
