"""HDF5 files in Caffe's layout: plain datasets, strings with a closing zero."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist import atomic, limits
from pycaffe_dist.errors import PcaffeError, SnapshotError

if TYPE_CHECKING:
    import h5py

# Exceptions of h5py, also for a group instead of a data set and for names that are not text.
_DAMAGE = (
    OSError,
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
)


@contextmanager
def filling(new: Path) -> Iterator[h5py.File]:
    """Open a new HDF5 file at a path of `atomic.replacing`; raises OSError."""
    import h5py

    try:
        with h5py.File(new, "w") as file:
            yield file
    except PcaffeError:
        raise
    except RuntimeError as error:
        # After a failed write, closing fails too: HDF5 keeps the file open, and the disk full.
        os.truncate(new, 0)
        first = error.__context__
        raise first if isinstance(first, OSError) else OSError(str(error)) from error


def check(new: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise OSError unless data sets of these names contain these arrays, bit for bit."""
    import h5py

    with h5py.File(new, "r") as file:
        for name, array in arrays.items():
            if np.asarray(file[name]).tobytes() != array.tobytes():
                raise atomic.unlike_written()


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[h5py.File]:
    """Open an HDF5 file to read; raises SnapshotError if it is damaged, also in the block."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            yield file
    except PcaffeError:
        raise
    except _DAMAGE as error:
        raise SnapshotError(f"{os.fspath(path)}: damaged or cut off: {error}") from error


def write_int(group: h5py.Group, name: str, value: int) -> None:
    """Write an integer as the one-element dataset that Caffe reads."""
    group.create_dataset(name, data=np.array([value], np.int32))


def write_string(group: h5py.Group, name: str, value: str) -> None:
    """Write a string with its closing zero, without which Caffe would read past its end."""
    import h5py

    text = value.encode()
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(len(text) + 1)
    kind.set_strpad(h5py.h5t.STR_NULLTERM)
    space = h5py.h5s.create(h5py.h5s.SCALAR)
    dataset = h5py.h5d.create(group.id, name.encode(), kind, space)
    dataset.write(space, space, np.array(text, f"S{len(text) + 1}"), kind)


def read_string(dataset: h5py.Dataset) -> str:
    """Return a string, stored with a fixed or a variable length."""
    value = dataset[()]
    return value.decode() if isinstance(value, bytes) else str(value)


def read_numbered(group: h5py.Group) -> list[np.ndarray | None]:
    """Return the datasets ``0``, ``1``, … of a group; None for a missing number.

    Raises SnapshotError for a number or an array that is too large for `limits`.
    """
    import h5py

    found = {
        int(name): item
        for name, item in group.items()
        if name.isdecimal() and isinstance(item, h5py.Dataset)
    }
    arrays: list[np.ndarray | None] = [None] * _count(group, max(found, default=-1) + 1)
    for number, item in found.items():
        excess = limits.excess_expanded(item.nbytes, item.id.get_storage_size())
        if excess:
            raise SnapshotError(f"{group.file.filename}: {item.name} {excess}")
        arrays[number] = _numbers(item)
    return arrays


def _count(group: h5py.Group, count: int) -> int:
    """Return the number of arrays in a group, including missing ones."""
    excess = limits.excess(count, limits.NUMBERED_ARRAYS, "numbered arrays")
    if excess:
        raise SnapshotError(f"{group.file.filename}: {group.name} {excess}")
    return count


def _numbers(dataset: h5py.Dataset) -> np.ndarray:
    if dataset.dtype.kind not in "fiu":
        raise ValueError(f"{dataset.name} holds {dataset.dtype}, not numbers")
    return np.asarray(dataset)
