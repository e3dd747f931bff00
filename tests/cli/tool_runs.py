"""Running Caffe's tools in this process, and reading the databases that they write."""

from __future__ import annotations

from pathlib import Path

import lmdb
import plyvel

from pycaffe_dist.cli.main import main
from pycaffe_dist.errors import FAILURE, WRONG_INPUT


def records_of(path: Path, backend: str = "lmdb") -> list[tuple[bytes, bytes]]:
    """Return a database's records, read by the library alone."""
    if backend == "leveldb":
        with plyvel.DB(str(path)) as db:
            return list(db)
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as transaction:
        return [(bytes(key), bytes(value)) for key, value in transaction.cursor()]


def run(tool, *args) -> int:
    """Run the command of a module; return its exit status."""
    return main([tool.__name__.rpartition(".")[2], *map(str, args)])


def fails(capsys, tool, *args, words: tuple[str, ...]) -> None:
    """Check that a tool fails and that its last line has these words."""
    assert run(tool, *args) in (FAILURE, WRONG_INPUT)
    message = capsys.readouterr().err.strip().splitlines()[-1]
    for word in words:
        assert word in message, message
