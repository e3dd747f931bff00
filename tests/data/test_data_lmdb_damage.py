"""LMDBs with damaged pages: the process survives, and says which page near which record it is."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from pycaffe_dist.data.sources import lmdb_pages, open_source
from pycaffe_dist.errors import DataError

PAGE = 4096
BRANCH, LEAF, VALUE = 1, 2, 4

# A separate process reads them: an abort would end the tests, too.
READ_ALL = """
import sys
from pycaffe_dist.data.sources import open_source
from pycaffe_dist.errors import DataError

for path in sys.argv[1:]:
    try:
        source = open_source(path, "lmdb")
        records = source.cursor().read(source.count)
        print(sum(len(records.value(i)) for i in range(source.count)), flush=True)
    except DataError as error:
        assert path in str(error) and "\\n" not in str(error)
        print("refused", flush=True)
"""


def _write(path: Path, count: int, most: int) -> bytes:
    rng = random.Random(0)
    with (
        lmdb.open(str(path), map_size=1 << 26, lock=False) as env,
        env.begin(write=True) as transaction,
    ):
        for i in range(count):
            transaction.put(b"%08d" % i, rng.randbytes(rng.randint(most // 2, most)))
    return (path / "data.mdb").read_bytes()


def _pages(whole: bytes, flags: int) -> list[int]:
    """Return the numbers of the pages with these flags, in order."""
    count = len(whole) // PAGE
    heads = [struct.unpack_from("<QHH", whole, PAGE * i) for i in range(count)]
    return [i for i, (number, _, found) in enumerate(heads) if (number, found) == (i, flags)]


def _damaged(whole: bytes, rng: random.Random) -> bytes:
    data, page = bytearray(whole), PAGE * rng.randrange(len(whole) // PAGE)
    way = rng.randrange(4)
    if way == 0:
        data[page : page + PAGE] = bytes(PAGE)
    elif way == 1:
        for _ in range(rng.randint(1, 4)):
            data[page + rng.randrange(16)] = rng.randrange(256)
    elif way == 2:  # the list of nodes, and the head of the first one in it
        node = struct.unpack_from("<H", data, page + 16)[0] % (PAGE - 8)
        for place in (16 + rng.randrange(4), node + rng.randrange(8)):
            data[page + place] = rng.randrange(256)
    else:
        del data[rng.randrange(len(data)) :]
    return bytes(data)


@pytest.mark.parametrize(("count", "most"), [(2000, 900), (120, 20000)])
def test_damage_never_ends_the_process(tmp_path, count, most):
    whole, rng, paths = _write(tmp_path / "whole", count, most), random.Random(1), []
    for i in range(60):
        paths.append(tmp_path / str(i))
        paths[-1].mkdir()
        (paths[-1] / "data.mdb").write_bytes(_damaged(whole, rng))
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, *paths], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{paths[done.stdout.count(chr(10))]}: {done.stderr}"
    assert 10 < done.stdout.count("refused") < 60


def _refuse(path: Path, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        source = open_source(str(path), "lmdb")
        source.cursor().read(source.count)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("flags", [BRANCH, LEAF])
def test_a_bad_page_is_reported_with_a_key_near_it(tmp_path, flags):
    path = tmp_path / "db"
    whole = _write(path, 20000, 60)
    leaf = _pages(whole, flags)[0 if flags == BRANCH else 100]
    (path / "data.mdb").write_bytes(whole[: PAGE * leaf] + bytes(PAGE) + whole[PAGE * (leaf + 1) :])
    _refuse(path, str(path), f"page {leaf} of", "near the record with key '000")


def test_a_value_in_pages_of_another_value(tmp_path):
    path = tmp_path / "db"
    whole = bytearray(_write(path, 9, 20000))
    start = _pages(whole, VALUE)[4]
    whole[PAGE * start : PAGE * start + 16] = bytes(16)
    (path / "data.mdb").write_bytes(whole)
    check = lmdb_pages.PageCheck(str(path), str(path / "data.mdb"))
    check.upto(8)  # it does not check the contents of such pages
    check = lmdb_pages.PageCheck(str(path), str(path / "data.mdb"), values_from=0)
    with pytest.raises(DataError, match=f"page {start} of .* with key '00000004'"):
        check.upto(8)


def test_the_rest_of_a_large_database_is_checked_while_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_pages, "_SECONDS_AT_OPENING", 0)
    monkeypatch.setattr(lmdb_pages, "_AT_ONCE", 2)
    path = tmp_path / "db"
    whole = _write(path, 3000, 60)
    last = _pages(whole, LEAF)[-1]
    (path / "data.mdb").write_bytes(whole[: PAGE * last] + bytes(PAGE) + whole[PAGE * (last + 1) :])
    source = open_source(str(path), "lmdb")
    cursor = source.cursor()
    assert len(cursor.read(2000)) == 2000
    for cursor in (cursor, source.cursor()):  # noqa: B020
        cursor.seek(2000)
        with pytest.raises(DataError, match=f"page {last} of"):
            cursor.read(1000)
    with pytest.raises(DataError, match=f"page {last} of"):
        list(source.items())
