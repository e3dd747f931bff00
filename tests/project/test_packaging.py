"""The wheel and the source archive hold what the package needs at run time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = (
    "pycaffe_dist/py.typed",
    "pycaffe_dist/schema/caffe.desc",
    "pycaffe_dist/schema/caffe_pb2.pyi",
    "pycaffe_dist/cli/main.py",
)


def sources() -> list[str]:
    return [str(path.relative_to(ROOT)) for path in (ROOT / "pycaffe_dist").rglob("*.py")]


def shipped() -> list[str]:
    """Return the files of models/ and data/ that belong to the package."""
    kinds = "models/*/*.prototxt", "models/*/readme.md", "data/*.sh", "data/*/*.sh"
    return [str(path.relative_to(ROOT)) for kind in kinds for path in ROOT.glob(kind)]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Build both archives from a copy, so that the working tree stays as it is."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("built")
    for file in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    skip = shutil.ignore_patterns("__pycache__", "*_lmdb", "*_leveldb", "*.h5", "*-ubyte", "*.bin")
    for folder in ("pycaffe_dist", "models", "data"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=skip)
    for made in ("models/lenet/lenet.caffemodel", "data/mnist/train-images-idx3-ubyte"):
        (tree / made).write_text("not for others")
    code = (
        f"from setuptools.build_meta import *; build_sdist({str(out)!r}); build_wheel({str(out)!r})"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, capture_output=True)
    return out


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for path in (ROOT / "pycaffe_dist").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_wheel_is_complete(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "pcaffe = pycaffe_dist.cli.main:main" in archive.read(entry_points).decode()
    assert {*NEEDED, *sources()} - names == set()
    inside = {name for name in names if name.startswith("pycaffe_dist/shipped/")}
    inside.remove("pycaffe_dist/shipped/__init__.py")
    assert inside == {f"pycaffe_dist/shipped/{file}" for file in shipped()}
    assert any(name.endswith("LICENSE") for name in names)


def test_the_source_archive_is_complete(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {*NEEDED, *sources(), *shipped(), "README.md", "LICENSE", "setup.cfg"}
    assert wanted - names == set()


def test_the_wheel_brings_models_and_data_scripts(built, tmp_path):
    """They are used outside of the repository, from the unpacked wheel."""
    (wheel,) = built.glob("*.whl")
    packages, here = tmp_path / "packages", tmp_path / "here"
    shutil.unpack_archive(wheel, packages, "zip")
    here.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHON": sys.executable}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    pcaffe = sys.executable, "-m", "pycaffe_dist"
    rows = json.loads(run(*pcaffe, "models", "--json"))["models"]
    assert {row["name"] for row in rows} == {path.name for path in (ROOT / "models").iterdir()}
    assert all(row["folder"].startswith(str(packages)) for row in rows)
    assert run(*pcaffe, "models", "copy", "hdf5_classification").split() == [
        *("models/hdf5_classification", "data/hdf5_classification")
    ]
    run("bash", "data/hdf5_classification/create_hdf5_classification.sh")
    net = "models/hdf5_classification/train_val.prototxt"
    assert "fc1" in run(*pcaffe, "summarize", net, "--shape=4,1,1")
    assert (here / "data/hdf5_classification/train.h5").exists()


def test_the_installed_program_runs(tmp_path):
    program = Path(sys.executable).with_name("pcaffe")
    done = subprocess.run([program, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: pcaffe COMMAND" in done.stdout
