"""Writes files so that a crash, a full disk or a reader never meets half of one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pycaffe_dist.errors import SnapshotError

Buffer = bytes | memoryview


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a new file's path, in the folder of ``path``, that takes the place of ``path`` when the
    block ends well and goes when it does not.

    The new file and then its name are on the disk before the block returns.  Raises SnapshotError
    when anything cannot be written; what was at ``path`` is then as it was.
    """
    path = Path(path)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield new
        _sync(new)
        os.replace(new, path)
        with suppress(OSError):  # some network file systems cannot sync a folder
            _sync(path.parent)
    except OSError as error:
        if not path.parent.is_dir():
            raise SnapshotError(f"{path}: folder '{path.parent}' does not exist") from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SnapshotError(f"{path}: cannot be written: {reason}") from error
    finally:
        with suppress(OSError):
            new.unlink()


def write(path: str | os.PathLike[str], parts: Iterable[Buffer]) -> None:
    """Write a whole file, given in parts, by way of `replacing`."""
    with replacing(path) as new, open(new, "xb") as file:
        file.writelines(parts)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
