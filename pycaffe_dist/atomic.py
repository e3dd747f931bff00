"""Writes files atomically: crashes and full disks leave no incomplete file, readers see none."""

from __future__ import annotations

import errno
import os
import secrets
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pycaffe_dist.errors import SnapshotError

Buffer = bytes | memoryview
_READ_BYTES = 1 << 20
_SUFFIX = ".tmp"


class Checksum(NamedTuple):
    """The number of bytes in a file and their CRC-32."""

    size: int
    crc32: int


def checksum(path: str | os.PathLike[str]) -> Checksum:
    """Return the checksum of a file; raises OSError."""
    size = crc = 0
    buffer = memoryview(bytearray(_READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            crc = zlib.crc32(buffer[:count], crc)
            size += count
    return Checksum(size, crc)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new file's path in the folder of ``path``.

    When the block succeeds, the new file replaces ``path``; when it fails, the new file is removed.
    The file and then its name are on the disk before the block returns.  Raises SnapshotError on a
    failed write; the file at ``path`` is then unchanged.
    """
    path = Path(path)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_SUFFIX}")
    try:
        with explaining(path):
            yield new
            sync(new)
            os.replace(new, path)
            with suppress(OSError):  # some network file systems cannot sync a folder
                sync(path.parent)
    finally:
        with suppress(OSError):
            new.unlink()


@contextmanager
def explaining(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError in the block into a SnapshotError about ``path``."""
    path = Path(path)
    try:
        yield
    except OSError as error:
        if not path.parent.is_dir():
            raise SnapshotError(f"{path}: folder '{path.parent}' does not exist") from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SnapshotError(f"{path}: cannot be written: {reason}") from error


def write(path: str | os.PathLike[str], parts: Sequence[Buffer]) -> None:
    """Write a file, given in parts, by `replacing`."""
    with replacing(path) as new:
        fill(new, parts)


def fill(new: Path, parts: Sequence[Buffer]) -> None:
    """Write the new file of `replacing`, and read it back.

    Raises OSError, also when the bytes that are read differ.
    """
    with open(new, "xb") as file:
        file.writelines(parts)
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    if checksum(new) != Checksum(sum(len(part) for part in parts), crc):
        raise unlike_written()


def finished(new: Path) -> Checksum:
    """Flush a file to the disk and return its checksum; raises OSError."""
    sync(new)
    return checksum(new)


def unlike_written() -> OSError:
    """Return the error for a file whose contents differ from the written bytes."""
    return OSError(errno.EIO, os.strerror(errno.EIO))


def remove_leftovers(folder: Path, beginning: str) -> None:
    """Remove temporary files of killed processes in ``folder`` whose names start like this."""
    for name in os.listdir(folder):
        if name.startswith(f".{beginning}") and name.endswith(_SUFFIX):
            with suppress(OSError):
                (folder / name).unlink()


def sync(path: Path) -> None:
    """Flush a file or folder to the disk; raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
