"""install-names: Caffe's names in a folder, found by shells and programs, and removed again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pycaffe_dist.caffe_modules import TOOLS
from pycaffe_dist.cli import main as cli
from pycaffe_dist.errors import WRONG_INPUT

BIN = Path(sys.executable).parent


def run(*command: object, path: Path | None = None, **more: str) -> subprocess.CompletedProcess:
    """Run a command with pcaffe on PATH; ``path`` comes before it."""
    folders = [*([str(path)] if path else []), str(BIN), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(folders), **more}
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, env=environment)


@pytest.fixture
def names(tmp_path) -> Path:
    assert cli.main(["install-names", str(tmp_path / "names")]) == 0
    return tmp_path / "names"


def test_the_names_run_pcaffes_commands(names):
    assert sorted(path.name for path in names.iterdir()) == sorted([*TOOLS, "caffe.py"])
    assert "usage: pcaffe COMMAND" in run("caffe", "--help", path=names).stdout
    for tool in ("convert_imageset", "upgrade_net_proto_text"):
        assert f"usage: pcaffe {tool}" in run(names / tool, "--help").stdout
    binary = names / "convert_mnist_data.bin"
    binary.symlink_to(names / "convert_mnist_data")
    assert "usage: pcaffe convert_mnist_data" in run(binary, "--help").stdout
    assert set(TOOLS) - {"caffe"} <= set(cli.commands())


def test_programs_import_caffe(names, tmp_path):
    code = (
        "import caffe.io; from caffe.proto import caffe_pb2; import caffe, pycaffe_dist\n"
        "assert caffe.Net is pycaffe_dist.Net and caffe.io is pycaffe_dist.io\n"
        "assert caffe.__version__.startswith('1.')"
    )
    done = run(sys.executable, "-c", code, PYTHONPATH=str(names))
    assert (done.returncode, done.stderr) == (0, "")
    program = tmp_path / "program.py"
    program.write_text("import caffe; print(caffe.TEST)")
    done = run(sys.executable, "-m", "pycaffe_dist.as_caffe", program, PYTHONPATH=str(names))
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_the_names_are_removed_but_no_other_files(names, capsys):
    (names / "mine").write_text("")
    (names / "device_query").unlink()
    (names / "device_query").write_text("mine")
    assert cli.main(["install-names", str(names), "--remove"]) == 0
    assert sorted(path.name for path in names.iterdir()) == ["device_query", "mine"]
    assert cli.main(["install_names", str(names), "--remove"]) == WRONG_INPUT
    assert "none of pcaffe's names in" in capsys.readouterr().err


def test_installing_again_changes_nothing(names):
    before = sorted(names.iterdir())
    assert cli.main(["install-names", str(names)]) == 0
    assert sorted(names.iterdir()) == before


def test_another_file_is_not_replaced(tmp_path, capsys):
    (tmp_path / "caffe.py").write_text("mine")
    assert cli.main(["install-names", "--force", str(tmp_path)]) == WRONG_INPUT
    assert "caffe.py' exists already and is not pcaffe's" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["caffe.py"]


@pytest.mark.parametrize("kind", ["program", "module"])
def test_an_installed_caffe_is_hidden_on_request_only(tmp_path, kind):
    other = tmp_path / "other"
    other.mkdir()
    if kind == "program":
        (other / "caffe").write_text("#!/bin/sh\n")
        (other / "caffe").chmod(0o755)
    else:
        (other / "caffe").mkdir()
        (other / "caffe/__init__.py").write_text("")
    command = [BIN / "pcaffe", "install-names", tmp_path / "names"]
    places = {"path": other, "PYTHONPATH": str(other)}
    done = run(*command, **places)
    assert done.returncode == WRONG_INPUT
    assert f"there is a Caffe already: {other}/caffe" in done.stderr
    assert not (tmp_path / "names").exists()
    assert run(*command, "--force", **places).returncode == 0
    assert (tmp_path / "names/caffe").is_symlink()


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["install-names", str(tmp_path / "file" / "names")]) == WRONG_INPUT
    assert "cannot write" in capsys.readouterr().err
