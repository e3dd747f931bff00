"""LMDBs that another process writes to, cuts short or overwrites while they are read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from pycaffe_dist.data.sources import lmdb_environment, open_source
from pycaffe_dist.errors import FAILURE, DataError

RECORDS = 600

# Replaces all values again and again, in a separate process: the library opens a database once.
WRITE = """
import sys, lmdb
path, transactions, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with lmdb.open(path, map_size=1 << 30, sync=False) as env:
    for number in range(transactions):
        with env.begin(write=True) as transaction:
            for i in range(0, 600, 1 + number % 3):
                transaction.put(b"%08d" % i, bytes([number % 250]) * (size + number % 7))
"""
READ = """
import sys
from pycaffe_dist.data.sources import open_source

source = open_source(sys.argv[1], "lmdb")
cursor = source.cursor()
first = [cursor.read(source.count).value(i) for i in range(source.count)]
keys = list(source.keys())
print("reading", flush=True)
while sys.stdin.readline():
    for _ in range(20):
        records = cursor.read(source.count)
        assert [records.value(i) for i in range(source.count)] == first
        assert [value for _, value in source.items()] == first
        assert source.fetch(keys[7:9]).value(1) == first[8]
    print("read", flush=True)
"""


def _write(path: Path, transactions: int, size: int = 300) -> Path:
    subprocess.run([sys.executable, "-c", WRITE, path, str(transactions), str(size)], check=True)
    return path


def _values(path: Path) -> list[bytes]:
    source = open_source(str(path), "lmdb")
    records = source.cursor().read(source.count)
    return [records.value(i) for i in range(source.count)]


def _reader(path: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    reader = subprocess.Popen(
        [sys.executable, "-c", READ, path], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    assert reader.stdout is not None and reader.stdout.readline() == "reading\n"
    return reader


@pytest.mark.parametrize("size", [300, pytest.param(9000, marks=pytest.mark.long)])
def test_another_process_writes_while_this_one_reads(tmp_path, size):
    path = _write(tmp_path / "db", 1, size)
    reader = _reader(path)
    assert reader.stdin is not None
    reader.stdin.write("\n" * 3)
    reader.stdin.flush()
    _write(path, 40, size)
    shown, errors = reader.communicate("\n", timeout=60)
    assert (reader.returncode, shown.count("read"), errors) == (0, 4, "")


def test_new_cursors_see_the_database_as_it_was_opened(tmp_path):
    path = _write(tmp_path / "db", 1)
    source = open_source(str(path), "lmdb")
    before = dict(source.items())
    _write(path, 5, 200)
    assert dict(source.items()) == before
    assert list(source.keys()) == list(before)
    cursors = [source.cursor(), source.cursor()]
    expected = [list(before.values())[i] for i in range(0, RECORDS, 5)]
    for _ in range(3):
        for cursor in cursors:
            records = cursor.read(RECORDS // 5, 5)
            assert [records.value(i) for i in range(len(records))] == expected
    del source, cursors, cursor, records
    assert _values(path) != list(before.values())


@pytest.fixture(params=["read-only", "another user's", "on NFS"])
def unlocked(request, tmp_path, monkeypatch) -> Path:
    """A database that is read without a lock."""
    path = _write(tmp_path / "db", 1)
    (path / "lock.mdb").unlink()
    if request.param == "read-only":
        (path / "data.mdb").chmod(0o444)
    elif request.param == "on NFS":
        monkeypatch.setattr(lmdb_environment, "_file_system", lambda path: "nfs4")
    else:
        owner = os.geteuid()
        monkeypatch.setattr(lmdb_environment.os, "geteuid", lambda: owner + 1)
    return path


def test_without_a_lock_nothing_is_created_and_writing_is_noticed(unlocked):
    source = open_source(str(unlocked), "lmdb")
    cursor = source.cursor()
    before = cursor.read(RECORDS).value(5)
    assert os.listdir(unlocked) == ["data.mdb"]
    (unlocked / "data.mdb").chmod(0o644)
    _write(unlocked, 1, 200)
    assert cursor.read(RECORDS).value(5) == before
    _write(unlocked, 1, 100)
    for read in (lambda: cursor.read(3), lambda: list(source.items())):
        with pytest.raises(DataError, match="written to while it was read without a lock"):
            read()


@pytest.mark.parametrize("locks", ["no lock.mdb can be created", "the list of readers is full"])
def test_without_a_possible_lock_reading_goes_on(tmp_path, monkeypatch, locks):
    path = _write(tmp_path / "db", 1)
    (path / "lock.mdb").unlink()
    if locks.startswith("no"):
        (path / "lock.mdb").mkdir()
    else:
        snapshot = lmdb_environment.Environment._snapshot

        def full(self):
            if self._locked:
                raise lmdb.ReadersFullError("MDB_READERS_FULL")
            return snapshot(self)

        monkeypatch.setattr(lmdb_environment.Environment, "_snapshot", full)
    assert len(_values(path)) == RECORDS


def test_with_a_full_list_of_readers_cursors_share_an_entry(tmp_path):
    path = _write(tmp_path / "db", 1)
    (path / "lock.mdb").unlink()
    program = (
        "import sys, time, lmdb\n"
        "env = lmdb.open(sys.argv[1], readonly=True, max_readers=2)\n"
        "t = env.begin(); print(flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline()
    source = open_source(str(path), "lmdb")
    values = [cursor.read(9).value(8) for cursor in [source.cursor() for _ in range(9)]]
    assert len(set(values)) == 1
    holder.communicate(b"")


@pytest.mark.parametrize("left", [0, 3 * 4096])
def test_a_file_that_is_cut_short_is_reported(tmp_path, left):
    path = _write(tmp_path / "db", 1)
    source = open_source(str(path), "lmdb")
    cursor = source.cursor()
    cursor.read(3)
    os.truncate(path / "data.mdb", left)
    for read in (lambda: cursor.read(3), lambda: source.fetch([b"00000001"])):
        with pytest.raises(DataError, match="cut short or overwritten"):
            read()


def test_a_page_that_vanishes_while_it_is_read_ends_the_process_with_one_line(tmp_path):
    path = _write(tmp_path / "db", 1, 9000)
    program = """
import os, sys
from pycaffe_dist import log
from pycaffe_dist.data.sources import open_source
log.start(level=40)  # not that kernels are compiled
cursor = open_source(sys.argv[1], "lmdb").cursor()
records = cursor.read(600)
os.truncate(sys.argv[1] + "/data.mdb", 8192)
records.value(599)
"""
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert done.returncode == FAILURE
    assert done.stderr.count("\n") == 1
    assert f"'{path}' was cut short or overwritten while it was read" in done.stderr


def test_other_bus_errors_are_left_alone(tmp_path):
    path = _write(tmp_path / "db", 1)
    program = """
import mmap, os, sys
from pycaffe_dist.data.sources import open_source
source = open_source(sys.argv[1], "lmdb")
with open(sys.argv[2], "w+b") as file:
    file.truncate(8192)
    memory = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
    memory[5000]
"""
    other = tmp_path / "other"
    done = subprocess.run([sys.executable, "-c", program, path, other], capture_output=True)
    assert (done.returncode, done.stderr) == (-signal.SIGBUS, b"")
