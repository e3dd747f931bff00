"""The LMDB source against liblmdb's own reader, and on files that are damaged in many ways."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import lmdb
import pytest

from pycaffe_dist.data.sources import open_source
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


def _read_all(path: Path) -> list[tuple[str, bytes]]:
    source = open_source(str(path), "lmdb")
    records = source.cursor().read(source.count)
    return [(records.key(i), records.value(i)) for i in range(len(records))]


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(1, (5, 5)), (3, (0, 0)), (5000, (0, 300)), (300, (1000, 9000)), (40, (4096 * 20, 4096 * 30))],
)
def test_records_are_those_that_liblmdb_reads(tmp_path, count, sizes):
    path = _write(tmp_path / "db", _values(count, sizes))
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as transaction:
        expected = [(key.decode(), bytes(value)) for key, value in transaction.cursor()]
    assert _read_all(path) == expected


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
    assert _read_all(path) == [(key.decode(), records[key]) for key in sorted(records)]


def test_walk_wraps_round_and_skips(tmp_path):
    count = 1001
    path = _write(tmp_path / "db", {b"%05d" % i: b"%d" % i * (i % 7) for i in range(count)})
    cursor = open_source(str(path), "lmdb").cursor()
    for position, n, step in [(0, 5, 1), (999, 7, 1), (17, 700, 3), (5 * count + 3, 4, 2000)]:
        cursor.seek(position)
        records = cursor.read(n, step)
        expected = [(position + i * step) % count for i in range(n)]
        assert [int(records.key(i)) for i in range(n)] == expected
        assert cursor.position == position + n * step


def test_two_sources_of_one_database_are_independent():
    one, two = (open_source(str(GOLDEN / "imgs_lmdb"), "lmdb").cursor() for _ in range(2))
    one.seek(4)
    assert one.read(1).value(0) != two.read(1).value(0)


def test_reading_leaves_the_folder_as_it_was(tmp_path):
    folder = tmp_path / "db"
    shutil.copytree(GOLDEN / "gray_lmdb", folder)
    _read_all(folder)
    assert os.listdir(folder) == ["data.mdb"]


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
    _fails(tmp_path, "no data.mdb")
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
    _fails(tmp_path / "db", "data format 2")


def test_duplicate_keys_and_named_databases_are_refused(tmp_path):
    with lmdb.open(str(tmp_path / "named"), max_dbs=2, lock=False) as env:
        env.open_db(b"inner")
    with pytest.raises(DataError, match="named sub-database"):
        open_source(str(tmp_path / "named"), "lmdb").cursor().read(1)


@pytest.mark.parametrize("sizes", [(100, 900), (3000, 20000)])
def test_truncated_file_is_refused_when_opened(tmp_path, sizes):
    path = _write(tmp_path / "db", _values(400, sizes))
    whole = (path / "data.mdb").read_bytes()
    expected = _read_all(path)
    lengths = {0, 1, 100, 4095, 4096, 5000, 8191, 8192, len(whole) - 1, len(whole) - 4096}
    lengths |= {len(whole) * i // 23 for i in range(23)}
    for length in sorted(lengths):
        (path / "data.mdb").write_bytes(whole[:length])
        try:
            read = _read_all(path)
        except DataError as error:
            assert str(path) in str(error)
        else:
            # What was cut off was a page that is not in use.
            assert read == expected and length > len(whole) - 8192


def test_truncation_is_told_with_both_sizes(tmp_path):
    path = _write(tmp_path / "db", _values(400, (100, 900)))
    size = (path / "data.mdb").stat().st_size
    os.truncate(path / "data.mdb", size // 2)
    _fails(path, "truncated", str(size), str(size // 2))


@pytest.mark.parametrize("sizes", [(100, 900), (3000, 20000)])
def test_damaged_pages_never_crash(tmp_path, sizes):
    path = _write(tmp_path / "db", _values(300, sizes))
    whole = (path / "data.mdb").read_bytes()
    rng = random.Random(3)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        # Headers, where the structure is, are hit more often than values.
        page = rng.randrange(len(whole) // 4096) * 4096
        for _ in range(rng.choice([1, 2, 50])):
            data[page + rng.randrange(rng.choice([24, 200, 4096]))] = rng.choice([0, 255, 128, 1])
        (path / "data.mdb").write_bytes(data)
        try:
            _read_all(path)
        except DataError:
            refused += 1
    assert refused > 30
