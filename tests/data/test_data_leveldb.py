"""The LevelDB source: order, wrap-around, independence of other readers, damaged files."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import plyvel
import pytest

from pycaffe_dist.data.sources import open_source
from pycaffe_dist.errors import DataError

GOLDEN = Path(__file__).parents[1] / "golden" / "data"


def _write(path: Path, count: int, size: int = 10) -> Path:
    with plyvel.DB(str(path), create_if_missing=True) as db:
        for i in range(count):
            db.put(b"%05d" % i, os.urandom(size))
    return path


def test_walk_wraps_round_and_skips(tmp_path):
    count = 101
    source = open_source(str(_write(tmp_path / "db", count)), "leveldb")
    cursor = source.cursor()
    assert source.count == count
    for position, n, step in [(0, 5, 1), (99, 7, 1), (17, 70, 3), (100 * count + 3, 4, 200)]:
        cursor.seek(position)
        records = cursor.read(n, step)
        expected = [(position + i * step) % count for i in range(n)]
        assert [source.describe(position + i * step) for i in range(n)] == [
            f"'{source.path}': record {i} (key '{i:05d}')" for i in expected
        ]
        assert len(records.value(0)) == 10


def test_values_are_the_written_ones(tmp_path):
    with plyvel.DB(str(tmp_path / "db"), create_if_missing=True) as db:
        for i in range(20):
            db.put(b"%d" % i, b"v" * i)
    source = open_source(str(tmp_path / "db"), "leveldb")
    assert dict(source.items()) == {b"%d" % i: b"v" * i for i in range(20)}
    records = source.cursor().read(20)
    assert [records.value(i) for i in range(20)] == [value for _, value in source.items()]


def test_several_readers_at_once_and_nothing_is_written():
    folder = GOLDEN / "imgs_leveldb"
    before = {name: (folder / name).stat().st_mtime_ns for name in os.listdir(folder)}
    sources = [open_source(str(folder), "leveldb") for _ in range(2)]
    first = [source.cursor().read(1).value(0) for source in sources]
    assert first[0] == first[1]
    for source in sources:
        source.close()
    assert {name: (folder / name).stat().st_mtime_ns for name in os.listdir(folder)} == before


def test_closing_removes_the_view(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = open_source(str(GOLDEN / "imgs_leveldb"), "leveldb")
    assert len(os.listdir(tmp_path)) == 1
    source.close()
    assert os.listdir(tmp_path) == []


def test_leftovers_of_killed_readers_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "pcaffe-leveldb-left").mkdir()
    (tmp_path / "pcaffe-leveldb-left" / "LOG").write_text("")
    sources = [open_source(str(GOLDEN / "imgs_leveldb"), "leveldb") for _ in range(2)]
    assert len(os.listdir(tmp_path)) == 2
    for source in sources:
        assert source.cursor().read(1)
        source.close()
    assert os.listdir(tmp_path) == []


def _fails(path: Path, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        source = open_source(str(path), "leveldb")
        source.cursor().read(source.count)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    assert "None" not in message and "pcaffe-leveldb" not in message
    for word in words:
        assert word in message, message


def test_missing_empty_and_foreign(tmp_path):
    _fails(tmp_path / "nothing", "does not exist")
    (tmp_path / "file").write_bytes(b"x")
    _fails(tmp_path / "file", "found a file")
    _fails(tmp_path, "no file CURRENT")
    _fails(GOLDEN / "imgs_lmdb", "looks like an LMDB")
    _fails(_write(tmp_path / "empty", 0), "holds no records")


def _damage(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 0x10
    file.write_bytes(data)


@pytest.mark.parametrize("part", [0, 9000, 17834])
def test_truncated_table(tmp_path, part):
    shutil.copytree(GOLDEN / "imgs_leveldb", tmp_path / "db")
    os.truncate(tmp_path / "db" / "000005.ldb", part)
    _fails(tmp_path / "db", "000005.ldb should have 17835 bytes", f"has {part}")


def test_flipped_byte_in_a_table(tmp_path):
    shutil.copytree(GOLDEN / "imgs_leveldb", tmp_path / "db")
    _damage(tmp_path / "db" / "000005.ldb", 5000)
    _fails(tmp_path / "db", "000005.ldb", "checksum")


def test_damage_is_reported_with_the_key_before_it(tmp_path):
    with plyvel.DB(
        str(tmp_path / "db"), create_if_missing=True, block_size=2000, write_buffer_size=1 << 16
    ) as db:
        for i in range(200):
            db.put(b"%05d" % i, os.urandom(1000))
    second = sorted((tmp_path / "db").glob("*.ldb"))[1]
    _damage(second, 10000)
    source = open_source(str(tmp_path / "db"), "leveldb")
    with pytest.raises(DataError) as caught:
        source.cursor().read(200)
    last = int(re.search("behind the record with key '([0-9]*)'", str(caught.value))[1])
    assert 30 <= last <= 90 and second.name in str(caught.value)
    with pytest.raises(DataError, match=second.name):
        _ = source.count


@pytest.mark.parametrize("name", ["000005.ldb", "000006.log", "MANIFEST-000004"])
def test_missing_part(tmp_path, name):
    shutil.copytree(GOLDEN / "imgs_leveldb", tmp_path / "db")
    (tmp_path / "db" / name).unlink()
    _fails(tmp_path / "db", "is damaged", name)


@pytest.fixture
def log(tmp_path) -> Path:
    """Return the log that has all records of a closed database."""
    with plyvel.DB(str(tmp_path / "db"), create_if_missing=True) as db:
        for i in range(0, 300, 100):
            with db.write_batch() as batch:
                for k in range(i, i + 100):
                    batch.put(b"%05d" % k, os.urandom(500))
    return tmp_path / "db" / "000003.log"


def test_truncated_log(log):
    size = log.stat().st_size
    source = open_source(str(log.parent), "leveldb")
    assert source.count == 300
    for length in (size - 1, 2 * size // 3 - 100, 32768, 32770, 5):
        os.truncate(log, length)
        _fails(log.parent, "000003.log ends within the record that begins at byte")


@pytest.mark.parametrize("place", [4, 100, 32772, -60000])
def test_flipped_byte_in_a_log(log, place):
    _damage(log, place)
    _fails(log.parent, "000003.log")


def test_zeros_in_a_log(log):
    data = bytearray(log.read_bytes())
    data[65536:] = bytes(len(data) - 65536)
    log.write_bytes(data)
    _fails(log.parent, "000003.log should have a record at byte 65536, has zeros")


@pytest.mark.parametrize("length", [10, 40])
def test_truncated_manifest(log, length):
    os.truncate(log.with_name("MANIFEST-000002"), length)
    _fails(log.parent, "MANIFEST-000002 ends within")


def test_flipped_byte_in_a_manifest(log):
    _damage(log.with_name("MANIFEST-000002"), 20)
    _fails(log.parent, "MANIFEST-000002", "checksum")
