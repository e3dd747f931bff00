"""The LMDB source: records, walks, sharing, and files that are no valid LMDB."""

from __future__ import annotations

import os
import random
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import pytest

from pycaffe_dist.data.sources import lmdb_environment, open_source
from pycaffe_dist.errors import DataError

GOLDEN = Path(__file__).parents[1] / "golden" / "data"


def _write(path: Path, records: dict[bytes, bytes], **options) -> Path:
    with lmdb.open(str(path), map_size=1 << 26, lock=False, **options) as env:
        for begin in range(0, len(records), 1000):
            with env.begin(write=True) as transaction:
                for key in list(records)[begin : begin + 1000]:
                    transaction.put(key, records[key])
    return path


def _values(count: int, sizes: tuple[int, int], seed: int = 0) -> dict[bytes, bytes]:
    rng = random.Random(seed)
    return {b"%08d" % i: rng.randbytes(rng.randint(*sizes)) for i in range(count)}


def _read_all(path: Path) -> list[tuple[bytes, bytes]]:
    source = open_source(str(path), "lmdb")
    records = source.cursor().read(source.count)
    values = [records.value(i) for i in range(len(records))]
    assert [value for _, value in source.items()] == values
    return list(source.items())


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(1, (5, 5)), (3, (0, 0)), (5000, (0, 300)), (300, (1000, 9000)), (40, (4096 * 20, 4096 * 30))],
)
def test_records_are_the_written_ones(tmp_path, count, sizes):
    values = _values(count, sizes)
    assert dict(_read_all(_write(tmp_path / "db", values))) == values


def test_database_with_deleted_and_replaced_records(tmp_path):
    records = _values(4000, (0, 3000))
    path = _write(tmp_path / "db", records)
    rng = random.Random(1)
    with lmdb.open(str(path), map_size=1 << 26, lock=False) as env:
        for _ in range(5):
            with env.begin(write=True) as transaction:
                for key in rng.sample(list(records), 300):
                    del records[key]
                    transaction.delete(key)
                for key in rng.sample(list(records), 300):
                    records[key] = rng.randbytes(rng.randint(0, 6000))
                    transaction.put(key, records[key])
    assert _read_all(path) == sorted(records.items())


def test_walk_wraps_round_and_skips(tmp_path):
    count = 1001
    path = _write(tmp_path / "db", {b"%05d" % i: b"%d" % i for i in range(count)})
    source = open_source(str(path), "lmdb")
    cursor = source.cursor()
    places = [(0, 5, 1), (999, 7, 1), (17, 700, 3), (5 * count + 3, 4, 2000), (1000, 2, 1001)]
    for position, n, step in [*places, (2, 1, 1), (1, 3005, 1), (0, 500, 2), (3, 4, 999)]:
        cursor.seek(position)
        records = cursor.read(n, step)
        expected = [(position + i * step) % count for i in range(n)]
        assert [int(records.value(i)) for i in range(n)] == expected
        assert cursor.position == position + n * step
        number = (position + step) % count
        assert f"record {number} (key '{number:05d}')" in source.describe(position + step)


def test_two_sources_of_one_database_are_independent():
    one, two = (open_source(str(GOLDEN / "imgs_lmdb"), "lmdb").cursor() for _ in range(2))
    one.seek(4)
    assert one.read(1).value(0) != two.read(1).value(0)


def test_reading_adds_no_more_than_the_lock(tmp_path):
    folder = tmp_path / "db"
    folder.mkdir()
    data = (GOLDEN / "gray_lmdb" / "data.mdb").read_bytes()
    (folder / "data.mdb").write_bytes(data)
    _read_all(folder)
    assert sorted(os.listdir(folder)) == ["data.mdb", "lock.mdb"]
    assert (folder / "data.mdb").read_bytes() == data


def _fails(path: Path, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        open_source(str(path), "lmdb")
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    for word in words:
        assert word in message, message


def test_missing_folder(tmp_path):
    _fails(tmp_path / "nothing", "does not exist")


def test_file_instead_of_folder(tmp_path):
    (tmp_path / "db").write_bytes(b"x")
    _fails(tmp_path / "db", "found a file")


def test_folder_of_another_kind(tmp_path):
    _fails(tmp_path, "no file data.mdb")
    _fails(GOLDEN / "imgs_leveldb", "looks like a LevelDB", "backend: LEVELDB")


@pytest.mark.parametrize("content", [b"", b"short", b"\0" * 8192, b"not an LMDB, but long" * 4000])
def test_file_that_is_no_lmdb(tmp_path, content):
    (tmp_path / "data.mdb").write_bytes(content)
    _fails(tmp_path, "is not an LMDB")


def test_empty_database(tmp_path):
    _fails(_write(tmp_path / "db", {}), "holds no records")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path):
    shutil.copytree(GOLDEN / "gray_lmdb", tmp_path / "db")
    (tmp_path / "db" / "data.mdb").chmod(0)
    _fails(tmp_path / "db", "Permission denied")


def test_other_format_version(tmp_path):
    shutil.copytree(GOLDEN / "gray_lmdb", tmp_path / "db")
    data = bytearray((tmp_path / "db" / "data.mdb").read_bytes())
    data[20] = 2
    (tmp_path / "db" / "data.mdb").write_bytes(data)
    _fails(tmp_path / "db", "data format v2")


@pytest.mark.parametrize("sizes", [(100, 900), (3000, 20000)])
def test_truncated_file_is_refused_when_opened(tmp_path, sizes):
    path = _write(tmp_path / "db", _values(400, sizes))
    whole = (path / "data.mdb").read_bytes()
    lengths = {0, 1, 100, 4095, 4096, 5000, 8191, 8192, len(whole) - 1, len(whole) - 4096}
    lengths |= {len(whole) * i // 23 for i in range(23)}
    for length in sorted(lengths):
        (path / "data.mdb").write_bytes(whole[:length])
        _fails(path)
    (path / "data.mdb").write_bytes(whole)
    assert len(_read_all(path)) == 400


def test_truncation_is_reported_with_both_sizes(tmp_path):
    path = _write(tmp_path / "db", _values(400, (100, 900)))
    size = (path / "data.mdb").stat().st_size
    os.truncate(path / "data.mdb", size // 2)
    _fails(path, "truncated", str(size), str(size // 2))


def test_missing_records_are_reported(tmp_path):
    path = _write(tmp_path / "db", _values(9, (5, 5)))
    data = bytearray((path / "data.mdb").read_bytes())
    # The number of records, in both meta pages' description of the main database.
    for page in (0, 4096):
        at = data.index(struct.pack("<Q", 9), page) if page or 9 in data[:4096] else -1
        if at >= 0:
            data[at] = 12
    (path / "data.mdb").write_bytes(data)
    _fails(path, "said to have 12 records, but has 9")


def test_large_records_stay_in_the_file_and_keep_it_open(tmp_path):
    values = _values(20, (4096, 90000))
    source = open_source(str(_write(tmp_path / "db", values)), "lmdb")
    keys = sorted(values)[::-3]
    records = source.fetch(keys)
    del source
    assert [records.value(i) for i in range(len(keys))] == [values[key] for key in keys]
    assert not records.buffer.flags.writeable and records.buffer.size > sum(map(len, keys))


def test_paths_to_one_database_share_it(tmp_path):
    path = _write(tmp_path / "db", _values(9, (5, 5)))
    (tmp_path / "link").symlink_to(path)
    one, two = (open_source(str(tmp_path / name), "lmdb") for name in ("db", "link"))
    cursor = one.cursor()
    one.close()
    assert cursor.read(9).value(8) == two.cursor().read(9).value(8)
    with pytest.raises(DataError, match="closed"):
        one.cursor()
    # The library opens it again only when it has been closed.
    del cursor, one, two
    lmdb.open(str(path), readonly=True, lock=False).close()


def test_threads_read_one_database_at_once(tmp_path):
    values = _values(2000, (0, 500))
    source = open_source(str(_write(tmp_path / "db", values)), "lmdb")

    def read(first: int) -> bool:
        cursor = source.cursor()
        cursor.seek(first)
        records = cursor.read(800, 4)
        every = list(values.values())
        return all(records.value(i) == every[(first + 4 * i) % 2000] for i in range(800))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, range(20)))


def test_database_is_opened_again_while_another_thread_closes_it(tmp_path):
    path = str(_write(tmp_path / "db", _values(9, (5, 5))))

    def open_and_drop(_: int) -> int:
        return open_source(path, "lmdb").cursor().read(9).values.shape[0]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(open_and_drop, range(400))) == [9] * 400


def test_database_that_the_program_itself_has_open(tmp_path, monkeypatch):
    path = _write(tmp_path / "db", _values(9, (5, 5)))
    monkeypatch.setattr(lmdb_environment, "_CLOSING_SECONDS", 0.01)
    with lmdb.open(str(path), readonly=True, lock=False):
        _fails(path, "already open")
