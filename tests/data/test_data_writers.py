"""Writing databases: whole or not at all, on a full disk, with two writers at once."""

from __future__ import annotations

import os
import resource
import signal
import time

import h5py
import pytest

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.features import create_features
from pycaffe_dist.data.sources import open_source
from pycaffe_dist.data.writers import create_database, write_file
from pycaffe_dist.errors import DataError, SnapshotError
from pycaffe_dist.schema import caffe_pb2

BACKENDS = ("lmdb", "leveldb")


@pytest.fixture
def small_files():
    """Let no file grow beyond 100 kB, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def no_space(tmp_path, monkeypatch):
    """Let all disks say that they have no room."""
    disk = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*disk[:4], 1, *disk[5:])))


@pytest.mark.parametrize("backend", BACKENDS)
def test_full_disk_leaves_nothing_behind(tmp_path, backend, small_files, no_space):
    with (
        pytest.raises(DataError, match=f"'{tmp_path}/db': No space left on device$") as caught,
        create_database(str(tmp_path / "db"), backend) as writer,
    ):
        for i in range(3000):
            writer.put(b"%08d" % i, os.urandom(100))
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_full_disk_is_noticed_before_hdf5_does(tmp_path, no_space):
    blob = Blob((2, 3))
    with (
        pytest.raises(SnapshotError, match="cannot be written: No space left on device"),
        create_features(str(tmp_path / "x.h5"), "hdf5", "x") as sink,
    ):
        sink.add(blob)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_two_writers_the_one_that_ends_first_wins(tmp_path, backend):
    path = str(tmp_path / "db")
    with pytest.raises(DataError, match="has appeared"), create_database(path, backend) as slow:
        slow.put(b"k", b"slow")
        with create_database(path, backend) as quick:
            quick.put(b"k", b"quick")
    assert dict(open_source(path, backend).items()) == {b"k": b"quick"}
    assert os.listdir(tmp_path) == ["db"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_error_in_the_body_leaves_nothing_behind(tmp_path, backend):
    path = str(tmp_path / "db")
    with pytest.raises(ZeroDivisionError), create_database(path, backend) as writer:
        writer.put(b"k", b"v")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", [*BACKENDS, "hdf5"])
def test_a_scalar_gives_one_feature_for_each_batch(tmp_path, kind):
    path, blob = str(tmp_path / "x"), Blob(())
    with create_features(path, kind, "x") as sink:
        for value in (1.5, 2.5):
            blob.data[...] = value
            sink.add(blob)
    assert sink.count == 2
    if kind == "hdf5":
        with h5py.File(path) as file:
            assert file["x"][...].tolist() == [1.5, 2.5]
        return
    datums = [caffe_pb2.Datum.FromString(value) for _, value in open_source(path, kind).items()]
    assert [(d.channels, d.height, d.width, *d.float_data) for d in datums] == [
        (1, 1, 1, 1.5),
        (1, 1, 1, 2.5),
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("kind", ["lmdb", "hdf5"])
def test_signals_that_kill_leave_nothing_behind(tmp_path, number, kind):
    signal.signal(number, signal.SIG_DFL)  # under nohup, SIGHUP is ignored
    with pytest.raises(SystemExit) as caught, create_features(str(tmp_path / "x"), kind, "x"):
        os.kill(os.getpid(), number)
        time.sleep(5)
    assert caught.value.code == 128 + number and os.listdir(tmp_path) == []
    assert signal.getsignal(number) == signal.SIG_DFL


def test_file_is_written_whole_or_not_at_all(tmp_path, small_files):
    path = tmp_path / "file"
    write_file(str(path), b"old", "mean file")
    with pytest.raises(DataError, match=f"cannot write mean file '{path}': File too large"):
        write_file(str(path), bytes(200_000), "mean file")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_database_is_readable_by_all_as_the_umask_says(tmp_path, backend):
    with create_database(str(tmp_path / "db"), backend) as writer:
        writer.put(b"k", b"v")
    assert (tmp_path / "db").stat().st_mode & 0o777 == 0o755
