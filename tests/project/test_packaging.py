"""The wheel and the source archive hold what the package needs at run time."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Build both archives from a copy, so that the working tree stays as it is."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("built")
    for file in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pycaffe_dist", tree / "pycaffe_dist", ignore=skip)
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
    assert any(name.endswith("LICENSE") for name in names)


def test_the_source_archive_is_complete(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*NEEDED, *sources(), "README.md", "LICENSE", "setup.cfg"} - names == set()


def test_the_installed_program_runs(tmp_path):
    program = Path(sys.executable).with_name("pcaffe")
    done = subprocess.run([program, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: pcaffe COMMAND" in done.stdout
