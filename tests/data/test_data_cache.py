"""Databases in memory: the same batches, one reader per node, limits, and no leftovers."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.node_memory import NodeMemory
from pycaffe_dist.data.options import ReadingOptions, set_options
from pycaffe_dist.data.writers import create_database
from pycaffe_dist.errors import DataError
from pycaffe_dist.layers.base import LayerContext, layer_class
from pycaffe_dist.schema import caffe_pb2


@pytest.fixture(autouse=True)
def _own_notes(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    set_options(ReadingOptions())
    assert not glob.glob(str(tmp_path / "pcaffe-*" / "*"))


def _database(path: Path, backend: str = "lmdb", bad: int = -1) -> Path:
    """Write 11 records: raw images, and encoded ones from number 5 on."""
    rng = np.random.default_rng(0)
    with create_database(str(path), backend) as writer:
        for i in range(11):
            pixels = rng.integers(0, 256, (3, 9, 8), np.uint8)
            datum = caffe_pb2.Datum(channels=3, height=9, width=8, label=i, data=pixels.tobytes())
            if i >= 5:
                png = cv2.imencode(".png", pixels.transpose(1, 2, 0))[1].tobytes()
                datum = caffe_pb2.Datum(encoded=True, label=i, data=png[: 20 if i == bad else None])
            writer.put(b"key%02d" % i, datum.SerializeToString())
    return path


def _batches(path: Path, count: int = 9, backend: str = "lmdb", **data) -> list[np.ndarray]:
    param = caffe_pb2.LayerParameter(name="d", type="Data", top=["data", "label"])
    param.data_param.MergeFrom(caffe_pb2.DataParameter(source=str(path), batch_size=3, **data))
    param.data_param.backend = caffe_pb2.DataParameter.DB.Value(backend.upper())
    param.transform_param.crop_size, param.transform_param.mirror = 7, True
    layer, tops = layer_class("Data")(param, LayerContext(seed=1)), [Blob(), Blob()]
    try:
        layer.setup([], tops)
        found = []
        for number in range(count):
            if number == 4:
                layer.set_state(layer.state())
            layer.forward([], tops)
            found += [top.data.copy() for top in tops]
        return found
    finally:
        layer.close()


@pytest.mark.parametrize("backend", ["lmdb", "leveldb"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("cache", ["records", "images"])
def test_batches_are_the_same(tmp_path, caplog, cache, shuffle, backend):
    caplog.set_level("INFO", "pcaffe")
    path = _database(tmp_path / "db", backend)
    expected = _batches(path, backend=backend, shuffle=shuffle)
    set_options(ReadingOptions(cache=cache))
    found = _batches(path, backend=backend, shuffle=shuffle)
    assert all(np.array_equal(*pair) for pair in zip(expected, found, strict=True))
    # The database is read only once, also by a layer that resumes at another record.
    assert sum("Cached" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("cache", ["records", "images"])
def test_bad_images_are_named_and_skipped_as_without_a_cache(tmp_path, cache):
    path = _database(tmp_path / "db", bad=7)
    set_options(ReadingOptions(cache=cache))
    with pytest.raises(DataError, match=r"db': record 7 \(key 'key07'\) cannot be decoded"):
        _batches(path)
    set_options(ReadingOptions(on_error="skip"))
    expected = _batches(path)
    set_options(ReadingOptions(on_error="skip", cache=cache))
    assert all(map(np.array_equal, expected, _batches(path)))


def test_database_larger_than_the_cache(tmp_path):
    path = _database(tmp_path / "db")
    set_options(ReadingOptions(cache="records", cache_limit=1000 / 2**30))
    with pytest.raises(DataError, match=r"layer 'd' .*--cache_limit\): 4 of its 11 records do"):
        _batches(path)


_PROGRAM = """
import sys
from pycaffe_dist.data.node_memory import NodeMemory
def fill(file):
    print("filled", flush=True)
    file.write(b"x" * 5000)
    if {fails}:
        raise RuntimeError
memory = NodeMemory("test", fill)
print(len(memory.bytes), flush=True)
sys.stdin.read()
memory.close()
"""


def _process(folder: Path, fails: bool = False) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(fails=fails)],
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_one_process_fills_and_may_be_killed(tmp_path):
    processes = [_process(tmp_path) for _ in range(3)]
    lines = [process.stdout.readline() for process in processes]
    assert sorted(lines) == ["5000\n", "5000\n", "filled\n"]
    filler = processes.pop(lines.index("filled\n"))
    filler.send_signal(signal.SIGKILL)
    filler.communicate()
    late = _process(tmp_path)  # finds the note of a process that has ended
    assert late.stdout.readline() == "filled\n"
    for process in [*processes, late]:
        process.communicate()
        assert process.returncode == 0


def test_the_next_process_tries_again_after_a_failure(tmp_path):
    processes = [_process(tmp_path, fails=True), _process(tmp_path)]
    output = [process.communicate()[0] for process in processes]
    assert output[0] in ("filled\n", "5000\n") and output[1].endswith("5000\n")


def test_notes_of_killed_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"pcaffe-{os.geteuid()}").mkdir(mode=0o700)
    dead = tmp_path / f"pcaffe-{os.geteuid()}" / "pcaffe-0123"
    dead.write_text("/proc/999999999/fd/7")
    first = NodeMemory("one", lambda file: file.write(b"abc"))
    second = NodeMemory("another", lambda file: file.write(b"abc"))
    assert len(list(dead.parent.iterdir())) == 2 and not dead.exists()
    first.close()
    second.close()


def test_memory_is_freed_with_its_last_user():
    def fill(file):
        file.write(b"abc")

    first = NodeMemory("identity", fill)
    second = NodeMemory("identity", pytest.fail)
    first.close()
    assert second.bytes.tobytes() == b"abc" and not second.bytes.flags.writeable
    third = NodeMemory("identity", fill)
    second.close()
    third.close()


def _own_folder(folder: Path, kind: str) -> None:
    if kind == "another user's":
        folder.mkdir(mode=0o700)
        os.chown(folder, 4321, 4321)
    elif kind == "open to all":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "a link":
        (folder.parent / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(folder.parent / "elsewhere")
    else:
        folder.write_text("")


@pytest.mark.parametrize("kind", ["another user's", "open to all", "a link", "a file"])
def test_notes_of_other_users_are_not_trusted(tmp_path, kind):
    if kind == "another user's" and os.geteuid():
        pytest.skip("needs root")
    folder = tmp_path / f"pcaffe-{os.geteuid()}"
    _own_folder(folder, kind)
    with pytest.raises(DataError, match=r"should be a folder of this user alone .* TMPDIR"):
        NodeMemory("x", lambda file: None)


def test_notes_are_in_the_users_own_folder(tmp_path):
    memory = NodeMemory("x", lambda file: file.write(b"abc") and None)
    folder = tmp_path / f"pcaffe-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(list(folder.iterdir())) == 1
    memory.close()
