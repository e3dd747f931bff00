"""Reads whole files, with clear errors for unusable ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pycaffe_dist.data_scripts import how_to_make
from pycaffe_dist.errors import PcaffeError

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_LFS_MAGIC = b"version https://git-lfs.github.com/spec/"


def require_file(path: str | os.PathLike[str], fail: Callable[[str], PcaffeError]) -> None:
    """Raise the error that ``fail`` makes from a message without the path if a file is missing."""
    if not Path(path).exists():
        raise fail(f"no such file{how_to_make(path)}")


def read_bytes(path: str | os.PathLike[str], fail: Callable[[str], PcaffeError]) -> bytes:
    """Return the contents of a file that must not be empty.

    ``fail`` makes the error from a message without the path.  It is raised for a missing, empty or
    unreadable file, a folder, and the pointer that git-lfs leaves in place of a large file.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise fail(f"no such file{how_to_make(path)}") from None
    except IsADirectoryError:
        raise fail("is a folder, not a file") from None
    except OSError as error:
        raise fail(f"cannot be read: {error.strerror}") from error
    except ValueError as error:  # a zero byte in the path
        raise fail(f"cannot be read: {error}") from None
    if not data:
        raise fail("is empty")
    if data.startswith(_LFS_MAGIC):
        raise fail("is only git-lfs's pointer to the real file; fetch that with `git lfs pull`")
    return data


def read_lines(path: str | os.PathLike[str], fail: Callable[[str], PcaffeError]) -> list[str]:
    """Return the lines of a text file, which may be empty.

    ``fail`` makes the error from a message without the path, for an unreadable or binary file.
    """
    try:
        return Path(path).read_text().splitlines()
    except OSError as error:
        raise fail(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise fail("is a binary file, expected a text") from None


def is_hdf5(path: str | os.PathLike[str]) -> bool:
    """Tell by its first bytes whether a file is HDF5; False if it is unreadable."""
    try:
        with open(path, "rb") as file:
            return file.read(len(HDF5_MAGIC)) == HDF5_MAGIC
    except OSError:
        return False


def looks_like_text(data: bytes) -> bool:
    """Tell whether data has no control bytes that do not occur in texts."""
    return not data.translate(None, _TEXT_BYTES)


_TEXT_BYTES = bytes(b for b in range(256) if b >= 32 or b in b"\t\n\v\f\r")
